// Rows of a table in a file, read by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace khop {

// Rows of one size, one after another in an open file.
struct FileTable {
  int file = -1;                 // its descriptor
  std::int64_t first_byte = 0;   // of the first row
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;  // how many the file should have
};

// The lowest row that could not be read, and why: the system's error, or 0 where the file ends before the row does.
struct ReadFailure {
  std::int64_t row = -1;  // -1: all were read
  int error = 0;
};

// Copies the rows of `ids`, which ascend, each once, to `out`, one after another. Rows whose pages touch are one read. The pages of
// up to `window` reads are announced to the system before they are needed, so that one thread keeps a disk busy; 0 announces
// nothing, for file systems that do not heed it: give many threads. Neither changes a byte. Throws std::invalid_argument for ids
// that do not ascend or are not among the table's rows.
ReadFailure read_file_rows(const FileTable& table, std::span<const std::int64_t> ids, std::int64_t window, int threads,
                           std::byte* out);

// Tell the system that a file will be read here and there, so that it reads no more than what is asked for.
void expect_scattered_reads(int file) noexcept;

// The type of the file system that a file is on, as statfs(2) names it; 0 where that is unknown.
std::int64_t file_system_type(int file) noexcept;

}  // namespace khop
