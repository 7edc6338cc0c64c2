#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <vector>

namespace {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

bool passes(const Test& test) {
  try {
    test.run();
    return true;
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n  %s\n", test.name, error.what());
    return false;
  }
}

}  // namespace

khop::testing::Registration::Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }

// With an argument: only the tests whose names contain it.
int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  int passed = 0;
  int failed = 0;
  for (const Test& test : tests()) {
    if (std::string_view(test.name).find(wanted) == std::string_view::npos) continue;
    ++(passes(test) ? passed : failed);
  }
  std::printf("native: %d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
