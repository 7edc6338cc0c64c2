// The core by itself, without Python.
#pragma once

#include <cstdint>
#include <filesystem>

namespace khop::benchmark {

// Milliseconds per batch when `threads` threads share `batches` batches of the subgraph expansion [15,10,5] between them:
// the median of `rounds`, after one that does not count. `graph` is a graph folder with one node type `node`, one edge type and
// a split `train`.
double bare_sampling_ms(const std::filesystem::path& graph, std::int64_t batch_size, int batches, int threads, int rounds);

// Prepares the operation of that name on a small fixed graph, then runs it once inside `khop_measured`, so that callgrind can
// count what it takes. False where there is none of that name.
bool run_operation(const char* name);

// The names that run_operation knows, one a line, to stdout.
void list_operations();

}  // namespace khop::benchmark
