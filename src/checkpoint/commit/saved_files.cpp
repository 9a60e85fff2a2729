// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string_view>

#include "checkpoint/commit/write_file.h"

namespace thinwire::checkpoint {
namespace {

// Lines, since no name has control characters: it is what one rank of this
// program tells another, and is on no disk.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  [[nodiscard]] bool done() const { return rest_.empty(); }
  std::string text() {
    const std::size_t end = rest_.find('\n');
    std::string line(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return line;
  }
  std::uint64_t number() { return std::stoull(text(), nullptr, 16); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string to_text(const std::vector<SavedFile>& files) {
  std::string text;
  for (const SavedFile& file : files) {
    text += fmt::format("{}\n{:x}\n{:x}\n", file.name, file.bytes,
                        file.chunk_hashes.size());
    for (const std::uint64_t hash : file.chunk_hashes)
      text += fmt::format("{:x}\n", hash);
    text += fmt::format("{:x}\n", file.tensors.size());
    for (const auto& [array, fragments] : file.tensors)
      text += fmt::format("{}\n{}\n", array, fragments);
  }
  return text;
}

std::vector<SavedFile> saved_files_from(const std::string& text) {
  std::vector<SavedFile> files;
  for (Lines lines(text); !lines.done();) {
    SavedFile& file = files.emplace_back();
    file.name = lines.text();
    file.bytes = lines.number();
    file.chunk_hashes.resize(lines.number());
    for (std::uint64_t& hash : file.chunk_hashes) hash = lines.number();
    file.tensors.resize(lines.number());
    for (auto& [array, fragments] : file.tensors) {
      array = lines.text();
      fragments = lines.text();
    }
  }
  return files;
}

}  // namespace thinwire::checkpoint
