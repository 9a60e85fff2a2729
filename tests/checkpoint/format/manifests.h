// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"

/// A manifest with something in every member.
// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::checkpoint::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

inline Manifest full_manifest() {
  Manifest m;
  m.id = "0123456789abcdef0123456789abcdef";
  m.run = "fedcba9876543210fedcba9876543210";
  m.save_index = 12;
  m.step = 1000;
  m.written = "2026-09-01T12:00:00Z";
  m.library = "0.5.0";
  m.world = 2;
  m.optimizer = "onebit_adam";
  m.semantics = "corrected";
  m.phase = "compressed";
  m.precision = "bf16";
  m.zero_stage = 1;
  m.parameters = {{"h.0.w", {768, 3072}, 0, {DType::kBFloat16}},
                  {"tab\xc3\xa4 \"q\"", {}, 1, {DType::kFloat32}}};
  m.aliases = {{"lm_head.weight", "wte.weight"}};
  m.others = {{"h.0.mask", {64, 64}, 0, {DType::kUInt8, "BOOL"}}};
  using optim::Axis;
  using optim::Sharing;
  m.arrays = {{"worker_error", Axis::kElement, Sharing::kMean},
              {"scales", Axis::kRange, Sharing::kSharded, DType::kFloat32},
              {"history", Axis::kFree, Sharing::kSame, DType::kFloat64}};
  m.files = {{"model.safetensors", 4096, {0x0123456789abcdef}},
             {"state-00001-of-00002.safetensors",
              kChunkBytes + 1,
              {1, ~std::uint64_t{0}},
              {{"worker_error", "fragments/0"}, {"history", ""}}},
             {"state-00002-of-00002.safetensors", 0, {}}};
  m.scalars.put_integer("step", 1000);
  m.scalars.put_integer("least", std::numeric_limits<std::int64_t>::min());
  m.scalars.put_real("loss_scale", 65536);
  m.scalars.put_real("third", 1.0 / 3);
  m.scalars.put_real("tiny", 5e-324);
  m.scalars.put_real("minus_zero", -0.0);
  m.scalars.put_real("clip_ratio", std::nan(""));
  m.scalars.put_real("most", HUGE_VAL);
  m.scalars.put_real("least_real", -HUGE_VAL);
  m.scalars_of_ranks.resize(2);
  m.scalars_of_ranks[1].put_integer("left_out_a_step", 1);
  m.extra.put_text("note", "two\nlines \xe2\x82\xac");
  m.extra_of_ranks.resize(2);
  m.extra_of_ranks[0].put_text("empty", "");
  m.config = "{\n  \"optimizer\": {}\n}";
  m.weight_files = {"model.safetensors"};
  m.steps_behind = 3;
  return m;
}

/// The text with one piece replaced, and a hash that fits again.
inline std::string rehashed(std::string text, std::string_view piece,
                            std::string_view by) {
  if (const auto at = text.find(piece); at != std::string::npos)
    text.replace(at, piece.size(), by);
  text.resize(text.rfind("\"manifest_xxh3\""));
  return text + manifest_end(text);
}

}  // namespace thinwire::checkpoint::test
