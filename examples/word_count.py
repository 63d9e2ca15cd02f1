"""A tool for Kappa: counts the words of its input files.

It knows nothing of Kappa but the contract (docs/tool-contract.md): a request and input files in its directory, a result
and output files left there.

    kg tool add word-count -- python3 /usr/local/lib/word_count.py
    kg tool run word-count --input notes.txt --wait
"""

import json
from collections import Counter
from pathlib import Path


def main() -> None:
    request = json.loads(Path("request.json").read_text())
    counts: Counter[str] = Counter()
    for done, name in enumerate(request["input_files"]):
        progress = {"done": done, "total": len(request["input_files"]), "message": f"reading {name}"}
        Path("progress.json").write_text(json.dumps(progress))
        words = Path("input", name).read_text(errors="replace").lower().split()
        counts.update(words)
        print(f"{name}: {len(words)} words")
    most = (request["inputs"] or {}).get("most", 10)
    Path("output", "counts.tsv").write_text("".join(f"{word}\t{count}\n" for word, count in counts.most_common()))
    result = {
        "contract_version": 1,
        "status": "succeeded",
        "outputs": {"words": counts.total(), "most_common": counts.most_common(most)},
        "artifacts": [{"path": "output/counts.tsv", "media_type": "text/tab-separated-values"}],
    }
    Path("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
