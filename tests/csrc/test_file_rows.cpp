#include "file_rows.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

namespace {

// A file of `bytes` that goes away with the object.
class File {
 public:
  explicit File(const std::vector<std::byte>& bytes) {
    std::string name = "/tmp/khop-file-rows-XXXXXX";
    file_ = mkstemp(name.data());
    unlink(name.c_str());
    CHECK_EQUAL(write(file_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  ~File() { close(file_); }
  int descriptor() const { return file_; }

 private:
  int file_;
};

std::vector<std::byte> numbered(std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

}  // namespace

TEST(rows_of_a_file_are_those_of_its_bytes) {
  for (const std::int64_t row_bytes : {1, 7, 256, 4096, 200'000}) {
    const std::int64_t first = 64, rows = row_bytes > 5000 ? 20 : 3000;
    const auto bytes = numbered(first + rows * row_bytes);
    const File file(bytes);
    khop::expect_scattered_reads(file.descriptor());
    for (const std::int64_t step : {1, 2, 17, 40}) {
      std::vector<std::int64_t> ids;
      std::vector<std::byte> expected;
      for (std::int64_t id = step / 2; id < rows; id += 1 + id % step) {
        ids.push_back(id);
        const auto at = bytes.begin() + first + id * row_bytes;
        expected.insert(expected.end(), at, at + row_bytes);
      }
      for (const std::int64_t window : {0, 1, 256}) {
        for (const int threads : {1, 4}) {
          std::vector<std::byte> out(expected.size());
          const auto failure = khop::read_file_rows({file.descriptor(), first, row_bytes, rows}, ids, window, threads, out.data());
          CHECK_EQUAL(failure.row, -1);
          CHECK(out == expected);
        }
      }
    }
  }
}

TEST(the_lowest_row_that_is_not_there_is_named) {
  const File file(numbered(1000 * 10 + 3));
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < 1500; id += 3) ids.push_back(id);
  std::vector<std::byte> out(ids.size() * 10);
  for (const int threads : {1, 4}) {
    const auto failure = khop::read_file_rows({file.descriptor(), 0, 10, 1500}, ids, 8, threads, out.data());
    CHECK_EQUAL(failure.row, 1002);
    CHECK_EQUAL(failure.error, 0);
  }
  const auto failure = khop::read_file_rows({-1, 0, 10, 1500}, ids, 8, 1, out.data());
  CHECK_EQUAL(failure.row, 0);
  CHECK_EQUAL(failure.error, EBADF);
}

TEST(rows_that_do_not_ascend_are_refused) {
  std::vector<std::byte> out(100);
  for (const std::vector<std::int64_t>& ids : {std::vector<std::int64_t>{3, 3}, {-1}, {20}, {std::int64_t{1} << 62}}) {
    CHECK_THROWS(std::invalid_argument, khop::read_file_rows({0, 0, 10, 20}, ids, 8, 1, out.data()));
  }
  CHECK_THROWS(std::invalid_argument, khop::read_file_rows({0, -1, 10, 20}, {}, 8, 1, out.data()));
}
