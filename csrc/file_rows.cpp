#include "file_rows.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef __linux__
#include <sys/vfs.h>
#endif

#include "parallel.h"

namespace khop {
namespace {

constexpr std::int64_t kMostBytes = 1 << 17;  // of several rows per read
constexpr std::int64_t kPartRows = 64;        // fewer are not worth a thread

// Rows [first, end) of the ids, which are read together.
struct Run {
  std::size_t first = 0;
  std::size_t end = 0;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

std::int64_t page_bytes() {
  static const std::int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

std::vector<Run> runs_of(const FileTable& table, std::span<const std::int64_t> ids, std::size_t begin, std::size_t end) {
  std::vector<Run> runs;
  runs.reserve(end - begin);
  for (std::size_t at = begin; at < end; ++at) {
    const std::int64_t offset = table.first_byte + ids[at] * table.row_bytes;
    if (!runs.empty()) {
      Run& last = runs.back();
      const std::int64_t bytes = offset + table.row_bytes - last.offset;
      const bool touches = offset / page_bytes() <= (last.offset + last.bytes - 1) / page_bytes() + 1;
      if (touches && bytes <= kMostBytes) {
        last.end = at + 1;
        last.bytes = bytes;
        continue;
      }
    }
    runs.push_back({at, at + 1, offset, table.row_bytes});
  }
  return runs;
}

void announce([[maybe_unused]] int file, [[maybe_unused]] const Run& run) {
#ifdef POSIX_FADV_WILLNEED
  static_cast<void>(posix_fadvise(file, run.offset, run.bytes, POSIX_FADV_WILLNEED));
#endif
}

// Reads all bytes of a run; on failure, returns the number of bytes read, with the error, or 0 at the end of the file.
std::int64_t read_bytes(int file, const Run& run, std::byte* to, int& error) {
  std::int64_t done = 0;
  error = 0;
  while (done < run.bytes) {
    const ssize_t got = pread(file, to + done, static_cast<std::size_t>(run.bytes - done), run.offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    done += got;
  }
  return done;
}

class Reader {
 public:
  Reader(const FileTable& table, std::span<const std::int64_t> ids, std::int64_t window, std::byte* out)
      : table_(table), ids_(ids), window_(static_cast<std::size_t>(window)), out_(out) {}

  void read(std::size_t begin, std::size_t end) {
    const std::vector<Run> runs = runs_of(table_, ids_, begin, end);
    std::vector<std::byte> buffer;
    std::size_t announced = 0;
    for (std::size_t at = 0; at < runs.size(); ++at) {
      for (; announced < std::min(runs.size(), at + window_); ++announced) announce(table_.file, runs[announced]);
      if (!read_run(runs[at], buffer)) return;
    }
  }

  ReadFailure failure() const { return failure_; }

 private:
  bool read_run(const Run& run, std::vector<std::byte>& buffer) {
    const auto rows = static_cast<std::int64_t>(run.end - run.first);
    std::byte* const to = out_ + static_cast<std::int64_t>(run.first) * table_.row_bytes;
    const bool is_dense = rows * table_.row_bytes == run.bytes;
    if (!is_dense) buffer.resize(static_cast<std::size_t>(kMostBytes));
    int error = 0;
    const std::int64_t done = read_bytes(table_.file, run, is_dense ? to : buffer.data(), error);
    if (done < run.bytes) return fail(run, done, error);
    if (is_dense) return true;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t id = ids_[run.first + static_cast<std::size_t>(row)];
      const std::int64_t from = table_.first_byte + id * table_.row_bytes - run.offset;
      std::memcpy(to + row * table_.row_bytes, buffer.data() + from, static_cast<std::size_t>(table_.row_bytes));
    }
    return true;
  }

  bool fail(const Run& run, std::int64_t done, int error) {
    const std::int64_t there = (run.offset + done - table_.first_byte) / table_.row_bytes;  // the first incomplete row
    const auto first = ids_.begin() + static_cast<std::ptrdiff_t>(run.first);
    const std::int64_t row = *std::lower_bound(first, ids_.begin() + static_cast<std::ptrdiff_t>(run.end), there);
    const std::lock_guard lock(mutex_);
    if (failure_.row < 0 || row < failure_.row) failure_ = {row, error};
    return false;
  }

  const FileTable table_;
  const std::span<const std::int64_t> ids_;
  const std::size_t window_;
  std::byte* const out_;
  std::mutex mutex_;
  ReadFailure failure_;
};

void check(const FileTable& table, std::span<const std::int64_t> ids, std::int64_t window) {
  if (table.first_byte < 0 || table.row_bytes < 1 || window < 0) {
    throw std::invalid_argument("rows of " + std::to_string(table.row_bytes) + " bytes from byte " + std::to_string(table.first_byte) +
                                ", " + std::to_string(window) + " ahead: none of these may be negative, and a row has a byte");
  }
  const std::int64_t most = std::min(table.rows, (std::numeric_limits<std::int64_t>::max() - table.first_byte) / table.row_bytes);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= most || (i > 0 && ids[i] <= ids[i - 1])) {
      throw std::invalid_argument("row " + std::to_string(ids[i]) + " at " + std::to_string(i) + ": rows to read must ascend, below " + std::to_string(most));
    }
  }
}

}  // namespace

ReadFailure read_file_rows(const FileTable& table, std::span<const std::int64_t> ids, std::int64_t window, int threads,
                           std::byte* out) {
  check(table, ids, window);
  Reader reader(table, ids, window, out);
  parallel_for(threads, static_cast<std::int64_t>(ids.size()), kPartRows, [&](std::int64_t begin, std::int64_t end) {
    reader.read(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  });
  return reader.failure();
}

void expect_scattered_reads([[maybe_unused]] int file) noexcept {
#ifdef POSIX_FADV_RANDOM
  static_cast<void>(posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM));
#endif
}

std::int64_t file_system_type([[maybe_unused]] int file) noexcept {
#ifdef __linux__
  struct statfs found;
  if (fstatfs(file, &found) == 0) return static_cast<std::int64_t>(found.f_type);
#endif
  return 0;
}

}  // namespace khop
