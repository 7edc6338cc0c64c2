#include "key_index.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace {

// Keys 0, 10, 20, ... and their index in two buckets.
struct Tens {
  explicit Tens(std::int64_t count) : buckets{0, 0, 0} {
    for (std::int64_t i = 0; i < count; ++i) keys.push_back(10 * i);
    std::vector<std::int64_t> bucket(keys.size());
    std::vector<std::int16_t> tag(keys.size());
    khop::key_buckets(khop::IntegerKeys{keys}, 1, bucket, tag);
    for (std::int64_t wanted = 0; wanted < 2; ++wanted) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (bucket[i] != wanted) continue;
        ids.push_back(static_cast<std::int32_t>(i));
        tags.push_back(tag[i]);
      }
      buckets[static_cast<std::size_t>(wanted) + 1] = static_cast<std::int64_t>(ids.size());
    }
  }
  khop::KeyIndex<std::int32_t> index() const { return {1, buckets, ids, tags}; }
  std::vector<std::int64_t> find(const std::vector<std::int64_t>& wanted) const {
    std::vector<std::int64_t> found(wanted.size());
    khop::find_keys(index(), khop::IntegerKeys{keys}, 0, khop::IntegerKeys{wanted}, found);
    return found;
  }

  std::vector<std::int64_t> keys, buckets;
  std::vector<std::int32_t> ids;
  std::vector<std::int16_t> tags;
};

}  // namespace

TEST(keys_are_found_by_bucket_and_tag) {
  const Tens tens(300);
  CHECK((tens.find({0, 2990, 15, -10, 70}) == std::vector<std::int64_t>{0, 299, -1, -1, 7}));
}

TEST(an_index_that_points_outside_is_damaged) {
  for (const std::int32_t id : {-1, 300}) {
    Tens tens(300);
    for (auto& each : tens.ids) each = id;
    CHECK_THROWS(std::invalid_argument, tens.find({10}));
  }
  Tens tens(300);
  for (auto& each : tens.buckets) each += 300;
  CHECK_THROWS(std::invalid_argument, tens.find({10}));
}
