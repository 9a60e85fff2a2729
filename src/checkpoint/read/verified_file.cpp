// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/verified_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "checkpoint/format/fields.h"
#include "thinwire/core/checksum.h"

namespace thinwire::checkpoint {

std::string read_text(FileSystem& files, const std::string& path,
                      bool follows_links, std::uint64_t most_bytes) {
  const auto file = files.open(path, follows_links);
  const std::uint64_t bytes = file->size();
  if (bytes > most_bytes)
    corrupt(path, fmt::format("it has {} bytes, at most {} are allowed", bytes,
                              most_bytes));
  std::string text(bytes, '\0');
  text.resize(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Manifest read_manifest(FileSystem& files, const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kManifestName);
  return parse_manifest(read_text(files, path, false, kMostManifestBytes),
                        path);
}

std::string some_of(const std::vector<std::string_view>& names) {
  constexpr std::size_t kMost = 4;
  const std::size_t shown = std::min(names.size(), kMost);
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size())
    text += fmt::format(", {} more", names.size() - shown);
  return text;
}

std::string tensors_in(const SafetensorsHeader& header, std::uint64_t begin,
                       std::uint64_t end) {
  std::vector<std::string_view> names;
  if (begin < header.data_begin || header.data_begin == 0)
    names.emplace_back("the header");
  for (const TensorEntry& tensor : header.tensors)
    if (tensor.bytes > 0 && tensor.begin < end && tensor.end() > begin)
      names.push_back(tensor.name);
  return some_of(names);
}

VerifiedFile::VerifiedFile(FileSystem& files, const std::string& directory,
                           const SavedFile& saved)
    : path_(directory + "/" + saved.name),
      file_(files.open(path_, false)),
      hashes_(saved.chunk_hashes),
      verified_(saved.chunk_hashes.size()),
      bytes_(file_->size()) {
  if (bytes_ != saved.bytes)
    corrupt(path_, fmt::format("it has {} bytes, the manifest says {}", bytes_,
                               saved.bytes));
  if (hashes_.size() != (bytes_ + kChunkBytes - 1) / kChunkBytes)
    corrupt(path_,
            fmt::format("{} hashes for {} bytes", hashes_.size(), bytes_));
  read_header(Writer::kThis);
}

VerifiedFile::VerifiedFile(FileSystem& files, const std::string& path)
    : path_(path), file_(files.open(path, true)), bytes_(file_->size()) {
  read_header(Writer::kOther);
}

void VerifiedFile::read_header(Writer writer) {
  std::string first(std::min<std::uint64_t>(bytes_, 8), '\0');
  read(0, std::as_writable_bytes(std::span(first)));
  std::string json(header_bytes(first, bytes_, path_), '\0');
  read(first.size(), std::as_writable_bytes(std::span(json)));
  header_ = parse_header(json, bytes_, path_, writer);
}

void VerifiedFile::read_exactly(std::uint64_t offset, std::span<std::byte> to) {
  const std::size_t count = file_->read_at(offset, to);
  read_ += count;
  if (count != to.size())
    corrupt(path_, fmt::format("it ends at byte {}, not at {}", offset + count,
                               bytes_));
}

// Hashes each piece while it is still in the cache.
void VerifiedFile::read_chunk(std::uint64_t chunk, std::span<std::byte> to) {
  constexpr std::size_t kPieceBytes = std::size_t{256} << 10;
  const std::uint64_t begin = chunk * kChunkBytes;
  Checksum checksum;
  for (std::size_t done = 0; done < to.size(); done += kPieceBytes) {
    const auto piece =
        to.subspan(done, std::min(kPieceBytes, to.size() - done));
    read_exactly(begin + done, piece);
    checksum.add(ConstView(std::span<const std::byte>(piece)));
  }
  verified_[chunk] = checksum.take() == hashes_[chunk];
  if (verified_[chunk]) return;
  const std::uint64_t end = begin + to.size();
  corrupt(path_, fmt::format("bytes {}-{} are damaged: {}", begin, end - 1,
                             describe_ ? describe_(begin, end)
                                       : tensors_in(header_, begin, end)));
}

// Reads the whole chunk into chunk_.
void VerifiedFile::load_chunk(std::uint64_t chunk) {
  const std::uint64_t begin = chunk * kChunkBytes;
  chunk_number_ = ~std::uint64_t{0};
  if (chunk_.empty())
    chunk_ = Buffer::of<std::uint8_t>(std::min(kChunkBytes, bytes_));
  read_chunk(chunk, chunk_bytes().first(std::min(kChunkBytes, bytes_ - begin)));
  chunk_number_ = chunk;
}

void VerifiedFile::read(std::uint64_t offset, std::span<std::byte> to) {
  if (offset > bytes_ || to.size() > bytes_ - offset)
    corrupt(path_, fmt::format("bytes {}-{} are beyond its end at {}", offset,
                               offset + to.size(), bytes_));
  if (hashes_.empty()) return read_exactly(offset, to);
  while (!to.empty()) {
    const std::uint64_t chunk = offset / kChunkBytes;
    const std::uint64_t begin = chunk * kChunkBytes;
    const std::uint64_t end = std::min(begin + kChunkBytes, bytes_);
    const auto part =
        to.first(std::min<std::uint64_t>(end - offset, to.size()));
    if (chunk == chunk_number_) {
      std::memcpy(part.data(), chunk_bytes().data() + (offset - begin),
                  part.size());
    } else if (verified_[chunk]) {
      read_exactly(offset, part);
    } else if (part.size() == end - begin) {
      read_chunk(chunk, part);
    } else {
      load_chunk(chunk);
      continue;
    }
    offset += part.size();
    to = to.subspan(part.size());
  }
}

}  // namespace thinwire::checkpoint
