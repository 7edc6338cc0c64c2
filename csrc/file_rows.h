// Rows of a table in a file, read by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Contiguous rows of equal size in an open file.
struct FileTable {
  int file = -1;                 // its descriptor
  std::int64_t first_byte = 0;   // of the first row
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;  // expected number of rows
};

// The first row that could not be read, and the system's error, or 0 if the file ends before the end of the row.
struct ReadFailure {
  std::int64_t row = -1;  // -1: all were read
  int error = 0;
};

// Copies the rows of `ids`, ascending and distinct, to `out`. Rows on adjacent pages are one read. The pages of up to `window`
// reads are prefetched, so that one thread keeps a disk busy; use 0 and many threads for file systems without prefetching. Neither
// affects the result. Throws std::invalid_argument for ids that do not ascend or are not rows of the table.
ReadFailure read_file_rows(const FileTable& table, std::span<const std::int64_t> ids, std::int64_t window, int threads,
                           std::byte* out);

// Advises the system that a file is read at random, so that it does not read ahead.
void expect_scattered_reads(int file) noexcept;

// The type of a file's file system as in statfs(2); 0 if unknown.
std::int64_t file_system_type(int file) noexcept;

}  // namespace khop
