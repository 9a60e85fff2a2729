// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/raw_files.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <span>
#include <utility>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::apps::bench {

using checkpoint::File;
using checkpoint::FileSystem;
using checkpoint::kChunkBytes;
using checkpoint::posix_file_system;

namespace {

std::span<std::byte> bytes_of(Buffer& memory) {
  return std::as_writable_bytes(memory.as<std::uint8_t>());
}

void write_small(FileSystem& files, const std::string& path,
                 std::span<const std::byte> bytes) {
  const auto file = files.create(path);
  file->allocate(bytes.size());
  file->write_at(0, bytes);
  file->sync();
  file->close();
}

}  // namespace

RawFiles::RawFiles(std::string folder, std::vector<std::uint64_t> sizes)
    : folder_(std::move(folder)),
      sizes_(std::move(sizes)),
      memory_(Buffer::of<std::uint8_t>(
          std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}))) {}

std::string RawFiles::path(std::size_t file) const {
  return folder_ + "/raw-" + std::to_string(file);
}

void RawFiles::write(bool durable) {
  std::span<const std::byte> rest = bytes_of(memory_);
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const auto file = posix_file_system().create(path(i));
    file->allocate(sizes_[i]);
    for (std::uint64_t at = 0; at < sizes_[i]; at += kChunkBytes) {
      const auto count = std::min(kChunkBytes, sizes_[i] - at);
      file->write_at(at, rest.first(count));
      rest = rest.subspan(count);
    }
    if (durable) file->sync();
    file->close();
  }
}

void RawFiles::remove() {
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    std::filesystem::remove(path(i));
}

void read_files(const std::vector<std::string>& paths) {
  std::vector<Buffer> kept;
  for (const std::string& path : paths) {
    const auto file = posix_file_system().open(path, false);
    const std::uint64_t size = file->size();
    kept.emplace_back(size, DType::kUInt8, Fill::kNone);
    const std::span<std::byte> to = bytes_of(kept.back());
    for (std::uint64_t at = 0; at < size; at += kChunkBytes)
      file->read_at(at, to.subspan(at, std::min(kChunkBytes, size - at)));
  }
}

void small_commit(const std::string& root, std::uint64_t file_bytes) {
  FileSystem& files = posix_file_system();
  const std::vector<std::byte> data(file_bytes);
  const std::string partial = root + "/new";
  files.make_directory(partial);
  write_small(files, partial + "/weights", data);
  write_small(files, partial + "/states", data);
  files.sync_directory(partial);
  write_small(files, partial + "/manifest.tmp", data);
  files.rename(partial + "/manifest.tmp", partial + "/manifest");
  files.sync_directory(partial);
  files.rename(partial, root + "/done");
  write_small(files, root + "/latest.tmp", data);
  files.rename(root + "/latest.tmp", root + "/latest");
  files.sync_directory(root);
}

void remove_small_commit(const std::string& root) {
  std::filesystem::remove_all(root + "/done");
}

}  // namespace thinwire::apps::bench
