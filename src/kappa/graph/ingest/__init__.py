"""From a document to the graph, in pure steps: read, chunk, extract, match. Who runs them is not their business."""
