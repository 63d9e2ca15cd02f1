"""From a document to the graph: read, chunk, extract, match. Pure steps, whoever runs them."""
