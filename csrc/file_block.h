// Memory backed by an unnamed file. The system can write its pages to the disk and evict them when it needs memory.
#pragma once

#include <cstddef>
#include <string>

namespace khop {

class FileBlock {
 public:
  FileBlock() = default;

  // An empty file in a folder. Throws std::system_error, as resize does.
  explicit FileBlock(const std::string& folder);
  ~FileBlock();
  FileBlock(FileBlock&& other) noexcept { swap(other); }
  FileBlock& operator=(FileBlock&& other) noexcept {
    swap(other);
    return *this;
  }

  bool is_open() const { return file_ >= 0; }
  char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Resizes to `bytes` bytes. New bytes are zero; others keep their values, and may move. Disk space is allocated immediately, so
  // that later writes cannot fail.
  void resize(std::size_t bytes);

 private:
  void swap(FileBlock& other) noexcept;

  int file_ = -1;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace khop
