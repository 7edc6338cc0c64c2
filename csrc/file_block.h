// Memory of a file without a name. It counts as pages of a file: the system writes them to the disk, and drops them when it needs
// memory.
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

  // Room for `bytes` bytes. New bytes are zero; the others keep their values, and may move. Space on the disk is taken at once, so
  // that no later write can fail.
  void resize(std::size_t bytes);

 private:
  void swap(FileBlock& other) noexcept;

  int file_ = -1;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace khop
