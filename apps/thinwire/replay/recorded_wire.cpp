// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/recorded_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "deepspeed/compressed_all_reduce.h"

namespace thinwire::replay {

namespace {

template <class T>
std::vector<std::uint8_t> bytes_of(const T* values, std::size_t count) {
  std::vector<std::uint8_t> bytes(count * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values, bytes.size());
  return bytes;
}

// Our first element is the lowest bit of a word; the reference's is the highest
// bit of a byte.
void append_bits(std::vector<std::uint8_t>& bytes, const std::uint32_t* words,
                 std::size_t count) {
  for (std::size_t first = 0; first < count; first += 8) {
    unsigned byte = 0;
    for (std::size_t i = first; i < first + 8; ++i)
      byte = byte << 1 | (words[i / 32] >> (i % 32) & 1u);
    bytes.push_back(static_cast<std::uint8_t>(byte));
  }
}

// Returns the tensor that holds element `at`.
std::size_t tensor_of(std::span<const Range> tensors, std::size_t at) {
  const auto found = std::ranges::find_if(
      tensors, [at](const Range& r) { return r.offset <= at && at < r.end(); });
  return static_cast<std::size_t>(found - tensors.begin());
}

}  // namespace

std::vector<RecordedBlock> blocks_of(std::span<const Range> tensors,
                                     const exchange::BlockLayout& layout) {
  std::vector<RecordedBlock> blocks;
  for (const exchange::Block& block : layout.blocks())
    blocks.push_back(
        {tensor_of(tensors, block.values.offset), block.values.size});
  return blocks;
}

std::vector<RecordedBlock> blocks_per_unit(std::span<const Range> tensors,
                                           std::span<const Range> units,
                                           int world) {
  std::vector<RecordedBlock> blocks;
  for (int server = 0; server < world; ++server)
    for (const Range& unit : units)
      if (unit.size != 0)
        blocks.push_back({tensor_of(tensors, unit.offset),
                          deepspeed::padded_size(unit.size, world) /
                              static_cast<std::size_t>(world)});
  return blocks;
}

WireRecorder::WireRecorder(std::vector<Range> tensors,
                           std::vector<RecordedBlock> blocks)
    : tensors_(std::move(tensors)),
      blocks_(std::move(blocks)),
      seen_(tensors_.size()) {}

void WireRecorder::worker_record(std::size_t block, kernels::Signs signs) {
  Seen& seen = seen_[blocks_[block].tensor];
  append_bits(seen.worker_bits, signs.words, blocks_[block].bits);
  seen.worker_scale = bytes_of(&signs.scale, 1);
}

void WireRecorder::server_record(std::size_t block, kernels::Signs signs) {
  Seen& seen = seen_[blocks_[block].tensor];
  append_bits(seen.server_bits, signs.words, blocks_[block].bits);
  seen.server_scale = bytes_of(&signs.scale, 1);
}

void WireRecorder::exact(Range range, ConstView values) {
  const float* floats = values.as<float>().data();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Range& tensor = tensors_[t];
    if (tensor.offset >= range.offset && tensor.end() <= range.end())
      seen_[t].exact =
          bytes_of(floats + (tensor.offset - range.offset), tensor.size);
  }
}

void WireRecorder::overflow_flag(std::uint8_t own) { flags_.push_back(own); }

std::vector<WireMessage> WireRecorder::take() {
  std::vector<WireMessage> messages;
  for (const std::uint8_t flag : flags_)
    messages.push_back({"all_reduce", "uint8", {flag}});
  flags_.clear();
  for (Seen& seen : seen_) {
    if (!seen.exact.empty())
      messages.push_back({"all_reduce", "float32", std::move(seen.exact)});
    if (!seen.worker_bits.empty()) {
      messages.push_back(
          {"all_to_all_single", "uint8", std::move(seen.worker_bits)});
      messages.push_back(
          {"all_gather", "float32", std::move(seen.worker_scale)});
      messages.push_back({"all_gather", "uint8", std::move(seen.server_bits)});
      messages.push_back(
          {"all_gather", "float32", std::move(seen.server_scale)});
    }
    seen = {};
  }
  return messages;
}

void compare_wire(Comparison& comparison, std::size_t step,
                  const std::vector<WireMessage>& got,
                  const nlohmann::json& want,
                  std::span<const std::uint8_t> recorded) {
  comparison.text({step, "number of wire messages"},
                  fmt::format("{}", got.size()),
                  fmt::format("{}", want.size()));
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const WireMessage& message = got[i];
    const Place place{step, fmt::format("wire message {}", i)};
    const auto bytes = want[i].back().get<std::size_t>();
    comparison.text(place,
                    fmt::format("{} {} {}", message.op, message.dtype,
                                message.payload.size()),
                    fmt::format("{} {} {}", want[i][0].get<std::string>(),
                                want[i][1].get<std::string>(), bytes));
    if (want[i].size() < 4) continue;
    const auto content = recorded.subspan(want[i][2].get<std::size_t>(), bytes);
    if (message.dtype == "uint8") {
      comparison.bytes(place, message.payload, content);
      continue;
    }
    const auto floats = [](std::span<const std::uint8_t> raw) {
      std::vector<float> values(raw.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), raw.data(), raw.size());
      return values;
    };
    comparison.floats(place, floats(message.payload), floats(content));
  }
}

}  // namespace thinwire::replay
