// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/text_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

constexpr std::size_t kHoldOutPart = 10;  // the last tenth

// splitmix64 (Steele et al., OOPSLA 2014): a bijection that mixes all bits.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Returns a number in [0, bound). The bias of the remainder is below bound /
// 2^64.
std::size_t draw(std::uint64_t seed, std::uint64_t number, std::size_t bound) {
  return mix(mix(seed) + number) % bound;
}

std::vector<std::uint8_t> read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("--data: cannot read '{}': {}", path, why));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error) refuse(error.message());
  // A device or a pipe may have no end.
  if (!std::filesystem::is_regular_file(status))
    refuse("it is not a regular file; copy its content into one");
  if (const auto size = std::filesystem::file_size(path);
      size > TextData::kMostBytes)
    refuse(
        fmt::format("it has {} bytes, and every rank holds all of it in "
                    "memory; the limit is {}",
                    size, TextData::kMostBytes));
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(file)),
                                  std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) refuse(std::strerror(errno));
  return bytes;
}

}  // namespace

TextData::TextData(const std::vector<std::string>& paths, std::size_t context,
                   std::size_t validation_bytes)
    : context_(context) {
  std::size_t total = 0;
  for (const std::string& path : paths) {
    Text& text = texts_.emplace_back();
    text.bytes = read_file(path);
    total += text.bytes.size();
    text.training = text.bytes.size() - text.bytes.size() / kHoldOutPart;
    text.starts = text.training > context ? text.training - context : 0;
    starts_ += text.starts;
  }
  choose_validation(validation_bytes);
  if (starts_ == 0 || validation_.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--data: too little text: {} bytes in {} files leave no "
                    "window of {} bytes for {}; give one file of {} bytes or "
                    "more, or a smaller train_gpt.context",
                    total, texts_.size(), context + 1,
                    starts_ == 0 ? "training" : "validation",
                    (context + 1) * kHoldOutPart));
  }
}

void TextData::choose_validation(std::size_t bytes) {
  std::vector<Window> all;
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    const Text& text = texts_[i];
    // Adjacent windows share one byte, the last target of the first window,
    // which the second one reads.
    for (std::size_t begin = text.training;
         begin + context_ < text.bytes.size(); begin += context_) {
      all.push_back({i, begin});
    }
  }
  const std::size_t wanted = (bytes + context_ - 1) / context_;
  const std::size_t count = std::min(wanted, all.size());
  for (std::size_t i = 0; i < count; ++i) {
    validation_.push_back(all[i * all.size() / count]);
  }
}

void TextData::append(std::size_t text, std::size_t begin, Batch& batch) const {
  const auto first =
      texts_[text].bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  batch.bytes.insert(batch.bytes.end(), first,
                     first + static_cast<std::ptrdiff_t>(context_ + 1));
  ++batch.sequences;
}

Batch TextData::sequences_from(std::int64_t first, const Shard& shard) const {
  Batch batch{.sequences = 0, .context = context_, .bytes = {}};
  const std::uint64_t own =
      static_cast<std::uint64_t>(first) + shard.rank * shard.sequences;
  for (std::size_t i = 0; i < shard.sequences; ++i) {
    std::size_t begin = draw(shard.seed, own + i, starts_);
    std::size_t text = 0;
    while (begin >= texts_[text].starts) begin -= texts_[text++].starts;
    append(text, begin, batch);
  }
  return batch;
}

Batch TextData::validation_batch(std::size_t first, std::size_t count) const {
  Batch batch{.sequences = 0, .context = context_, .bytes = {}};
  for (std::size_t i = first; i < first + count; ++i) {
    append(validation_[i].text, validation_[i].begin, batch);
  }
  return batch;
}

std::uint64_t TextData::hash() const {
  std::uint64_t hash = 0;
  for (const Text& text : texts_) {
    const std::string_view bytes(
        reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size());
    hash = checksum(
        fmt::format("{:016x} {} {:016x}", hash, bytes.size(), checksum(bytes)));
  }
  return hash;
}

Piece piece_of(std::size_t windows, std::size_t rank, std::size_t world_size) {
  const std::size_t first = windows * rank / world_size;
  return {first, windows * (rank + 1) / world_size - first};
}

}  // namespace thinwire::train_gpt
