#include "benchmark.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "dispatch.h"

namespace {

constexpr const char* kUsage =
    "usage: khop_benchmark sampling GRAPH BATCH_SIZE BATCHES THREADS ROUNDS   milliseconds per batch\n"
    "       khop_benchmark operation NAME                                     runs it once, for callgrind\n"
    "       khop_benchmark operations                                         their names\n";

int run(int argc, char** argv) {
  if (argc == 7 && std::strcmp(argv[1], "sampling") == 0) {
    std::printf("%.4f\n", khop::benchmark::bare_sampling_ms(argv[2], std::atoll(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]),
                                                            std::atoi(argv[6])));
    return EXIT_SUCCESS;
  }
  if (argc == 3 && std::strcmp(argv[1], "operation") == 0) {
    // Counts must not depend on what the machine has beyond the baseline.
    khop::set_dispatch_level("plain");
    if (khop::benchmark::run_operation(argv[2])) return EXIT_SUCCESS;
  }
  if (argc == 2 && std::strcmp(argv[1], "operations") == 0) {
    khop::benchmark::list_operations();
    return EXIT_SUCCESS;
  }
  std::fputs(kUsage, stderr);
  return EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "khop_benchmark: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
