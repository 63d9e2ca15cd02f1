"""The limit: searches in C over plain CSR arrays. No tables of filters, no changed lists, no order, no answer."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.graph_parts.data import World

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define BIT(s, n) ((s)[(n) >> 6] >> ((n) & 63) & 1)
#define SET(s, n) ((s)[(n) >> 6] |= (uint64_t)1 << ((n) & 63))
/* `ptr` and `nbr` are both directions in one list. Direction-optimising. */
int64_t reach(const int64_t *ptr, const int32_t *nbr, const uint8_t *ok, int32_t nodes, int32_t seed, int hops,
              int32_t *found)
{
    size_t words = (nodes + 63) / 64;
    uint64_t *seen = calloc(words, 8), *front = malloc(words * 8);
    int64_t from = 0, to = 1, count = 1;
    found[0] = seed;
    SET(seen, seed);
    for (int hop = 0; hop < hops && from < to; hop++) {
        int64_t edges = 0;
        if (to - from > nodes / 64)
            for (int64_t f = from; f < to; f++) edges += ptr[found[f] + 1] - ptr[found[f]];
        if (edges > ptr[nodes] / 10) {
            memset(front, 0, words * 8);
            for (int64_t f = from; f < to; f++) SET(front, found[f]);
            for (int32_t n = 0; n < nodes; n++) {
                if (BIT(seen, n) || !ok[n]) continue;
                for (int64_t i = ptr[n]; i < ptr[n + 1]; i++)
                    if (BIT(front, nbr[i])) { found[count++] = n; break; }
            }
            for (int64_t f = to; f < count; f++) SET(seen, found[f]);
        } else {
            for (int64_t f = from; f < to; f++)
                for (int64_t i = ptr[found[f]]; i < ptr[found[f] + 1]; i++) {
                    int32_t n = nbr[i];
                    if (BIT(seen, n) || !ok[n]) continue;
                    SET(seen, n);
                    found[count++] = n;
                }
        }
        from = to;
        to = count;
    }
    free(seen);
    free(front);
    return count - 1;
}
/* The length of a shortest way, by the smaller of two frontiers in turn; -1 where there is none. */
int64_t distance(const int64_t *ptr, const int32_t *nbr, const uint8_t *ok, int32_t nodes, int32_t start, int32_t goal,
                 int most)
{
    uint8_t *side = calloc(nodes, 1);
    int32_t *queue[2] = {malloc(4 * (size_t)nodes), malloc(4 * (size_t)nodes)};
    int64_t from[2] = {0, 0}, to[2] = {1, 1}, found = start == goal ? 0 : -1;
    queue[0][0] = start;
    queue[1][0] = goal;
    side[start] = 1;
    side[goal] = 2;
    for (int hop = 1; hop <= most && found < 0; hop++) {
        int me = to[1] - from[1] < to[0] - from[0];
        int64_t end = to[me];
        for (int64_t f = from[me]; f < end && found < 0; f++)
            for (int64_t i = ptr[queue[me][f]]; i < ptr[queue[me][f] + 1]; i++) {
                int32_t n = nbr[i];
                if (side[n] == 2 - me) { found = hop; break; }
                if (side[n] || !ok[n]) continue;
                side[n] = 1 + me;
                queue[me][to[me]++] = n;
            }
        from[me] = end;
        if (from[me] == to[me]) break;
    }
    free(side);
    free(queue[0]);
    free(queue[1]);
    return found;
}
"""


class Limit:
    """The quickest walk and the quickest path there are."""

    name = "limit"

    def __init__(self, world: World, directory: Path) -> None:
        source, library = directory / "limit.c", directory / "limit.so"
        if not library.exists():
            source.write_text(SOURCE)
            command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)]
            subprocess.run(command, check=True)
        compiled = ctypes.CDLL(str(library))
        self._reach, self._distance = compiled.reach, compiled.distance
        self._reach.restype = self._distance.restype = ctypes.c_int64
        here = np.concatenate((world.heads, world.tails)) - 1
        there = np.concatenate((world.tails, world.heads)) - 1
        order = np.argsort(here << 32 | there)
        self._nbr = there[order].astype(np.int32)
        self._ptr = np.zeros(world.nodes + 1, np.int64)
        np.cumsum(np.bincount(here, minlength=world.nodes), out=self._ptr[1:])
        self._ok = world.passes.astype(np.uint8)
        self._found = np.empty(world.nodes, np.int32)
        self._graph = (_at(self._ptr), _at(self._nbr), _at(self._ok), ctypes.c_int32(world.nodes))

    def reach(self, seed: int, hops: int) -> int:
        return self._reach(*self._graph, ctypes.c_int32(seed - 1), hops, _at(self._found))

    def path(self, start: int, goal: int, hops: int) -> int:
        return self._distance(*self._graph, ctypes.c_int32(start - 1), ctypes.c_int32(goal - 1), hops)


def _at(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
