// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/write_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "thinwire/core/buffer.h"
#include "thinwire/core/checksum.h"

namespace thinwire::checkpoint {
namespace {

constexpr std::uint64_t kWriteBackBytes = std::uint64_t{32} << 20;

// Fills `to` with the file's bytes from `offset` on.
using Source =
    std::function<void(std::uint64_t offset, std::span<std::byte> to)>;

// Bytes that are copied, hashed and written at a time. They fit into the cache.
constexpr std::uint64_t kPieceBytes = std::uint64_t{256} << 10;
static_assert(kChunkBytes % kPieceBytes == 0);

SavedFile write(const Destination& to, const std::string& name,
                std::uint64_t bytes, const Source& source) {
  SavedFile saved{.name = name, .bytes = bytes};
  const auto file = to.files.create(to.directory + "/" + name);
  file->allocate(bytes);
  Buffer memory = Buffer::of<std::uint8_t>(
      static_cast<std::size_t>(std::min(bytes, kPieceBytes)));
  Checksum checksum;
  std::uint64_t told = 0;
  std::uint64_t behind = 0;  // end of the bytes whose writing to disk has begun
  for (std::uint64_t at = 0; at < bytes;) {
    const auto size =
        static_cast<std::size_t>(std::min(bytes - at, kPieceBytes));
    const auto piece =
        std::as_writable_bytes(memory.as<std::uint8_t>().first(size));
    source(at, piece);
    checksum.add(ConstView(std::span<const std::byte>(piece)));
    file->write_at(at, piece);
    at += size;
    if (at % kChunkBytes == 0 || at == bytes) {
      saved.chunk_hashes.push_back(checksum.take());
      if (to.wrote) to.wrote(at - told);
      told = at;
    }
    if (to.durable && at - behind >= kWriteBackBytes) {
      file->write_back(behind, at - behind);
      behind = at;
    }
  }
  if (to.durable) file->sync();
  file->close();
  return saved;
}

// The bytes of the header and the tensors, of which any range can be read.
class Contents {
 public:
  explicit Contents(const PlannedFile& planned)
      : planned_(planned), header_(write_header(planned.header)) {}

  void read(std::uint64_t offset, std::span<std::byte> to) const {
    if (offset < header_.size()) {
      const auto count = std::min<std::size_t>(
          to.size(), header_.size() - static_cast<std::size_t>(offset));
      std::memcpy(to.data(), header_.data() + offset, count);
      to = to.subspan(count);
      offset += count;
    }
    const std::vector<TensorEntry>& tensors = planned_.header.tensors;
    auto tensor = std::upper_bound(
        tensors.begin(), tensors.end(), offset,
        [](std::uint64_t at, const TensorEntry& t) { return at < t.end(); });
    for (; !to.empty(); ++tensor) {
      if (tensor->bytes == 0) continue;
      const std::uint64_t inside = offset - tensor->begin;
      const auto count = static_cast<std::size_t>(
          std::min<std::uint64_t>(to.size(), tensor->bytes - inside));
      planned_.read(static_cast<std::size_t>(tensor - tensors.begin()), inside,
                    to.first(count));
      to = to.subspan(count);
      offset += count;
    }
  }

 private:
  const PlannedFile& planned_;
  std::string header_;
};

}  // namespace

// Offsets are multiples of the element size, because larger types come first in
// a file and pieces are multiples of 8 bytes.
PlannedFile planned_file(std::string name,
                         const std::vector<PlannedTensor>& tensors,
                         Metadata metadata) {
  std::vector<TensorEntry> entries;
  std::unordered_map<std::string_view, const PlannedTensor*> by_name;
  for (const PlannedTensor& tensor : tensors) {
    entries.push_back(tensor.entry);
    by_name[tensor.entry.name] = &tensor;
  }
  PlannedFile file{
      .name = std::move(name),
      .header = place_tensors(std::move(entries), std::move(metadata)),
      .read = {}};
  std::vector<optim::StateArray::Read> reads;  // in the order of the header
  for (const TensorEntry& entry : file.header.tensors)
    reads.push_back(by_name.at(entry.name)->read);
  file.read = [reads = std::move(reads), header = file.header](
                  std::size_t tensor, std::uint64_t offset,
                  std::span<std::byte> to) {
    const DType dtype = header.tensors[tensor].type.dtype;
    const std::size_t size = size_of(dtype);
    const Range range{static_cast<std::size_t>(offset) / size,
                      to.size() / size};
    reads[tensor](range, View(to.data(), range.size, dtype));
  };
  return file;
}

SavedFile write_file(const Destination& to, const PlannedFile& planned) {
  const Contents contents(planned);
  SavedFile saved =
      write(to, planned.name, planned.header.file_bytes,
            [&](std::uint64_t offset, std::span<std::byte> piece) {
              contents.read(offset, piece);
            });
  saved.tensors = planned.tensors;
  return saved;
}

SavedFile write_file(const Destination& to, const Attachment& attachment) {
  return write(to, attachment.name, attachment.bytes.size(),
               [&](std::uint64_t offset, std::span<std::byte> piece) {
                 std::memcpy(piece.data(), attachment.bytes.data() + offset,
                             piece.size());
               });
}

}  // namespace thinwire::checkpoint
