"""One module a family of formats; ``kvplan.trace.formats`` lists them all."""
