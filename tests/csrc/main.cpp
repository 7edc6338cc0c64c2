#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

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

// With an argument: only the tests whose names contain it. Two processes share the tests.
int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  std::vector<Test> chosen;
  for (const Test& test : tests()) {
    if (std::string_view(test.name).find(wanted) != std::string_view::npos) chosen.push_back(test);
  }
  const pid_t other = fork();
  std::size_t failed = 0, taken = 0;
  for (std::size_t i = other == 0 ? 1 : 0; i < chosen.size(); i += other < 0 ? 1 : 2) {
    ++taken;
    failed += passes(chosen[i]) ? 0 : 1;
  }
  if (other == 0) return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  int status = 0;
  const bool passed = (other < 0 || (waitpid(other, &status, 0) == other && status == 0)) && failed == 0 && taken > 0;
  std::printf("native: %zu tests %s\n", chosen.size(), passed ? "passed" : "FAILED");
  return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
