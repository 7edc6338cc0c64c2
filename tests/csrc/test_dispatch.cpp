#include "check.h"
#include "dispatch.h"

TEST(the_plainest_level_is_there_on_every_machine) {
  CHECK(khop::dispatch_levels().front().supported);
  CHECK_EQUAL(khop::dispatch_levels().front().name, "plain");
}

TEST(a_level_that_is_not_there_changes_nothing) {
  const khop::Level before = khop::dispatch_level();
  CHECK(!khop::set_dispatch_level("avx1024"));
  CHECK(khop::dispatch_level() == before);
  for (const khop::LevelInfo& level : khop::dispatch_levels()) {
    if (!level.supported) CHECK(!khop::set_dispatch_level(level.name));
  }
}
