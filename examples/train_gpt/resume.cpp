// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/resume.h"

#include <fmt/format.h>

#include <charconv>

#include "core/require.h"
#include "optim/saved_state.h"

namespace thinwire::train_gpt {
namespace {

std::uint64_t number_from(const std::string& hex) {
  std::uint64_t number = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  return number;
}

}  // namespace

checkpoint::Extra extra_of(const Position& position, bool is_first) {
  checkpoint::Extra extra;
  extra.common.put_integer("step", position.step);
  extra.common.put_integer("next_sequence", position.next_sequence);
  // Scalars are signed, so this is a text.
  extra.common.put_text("seed", fmt::format("{:016x}", position.seed));
  extra.common.put_text("data_hash",
                        fmt::format("{:016x}", position.data_hash));
  if (!is_first) return extra;
  const Totals& totals = position.totals;
  extra.own.put_integer("bytes_sent",
                        static_cast<std::int64_t>(totals.bytes_sent));
  extra.own.put_real("seconds", totals.seconds);
  extra.own.put_real("tokens", totals.tokens);
  if (totals.val_loss) extra.own.put_real("val_loss", *totals.val_loss);
  extra.own.put_integer("saves", position.saves);
  extra.own.put_real("save_seconds", position.save_seconds);
  return extra;
}

Position position_of(const checkpoint::LoadReport& report, bool is_first) {
  const StateDict& common = report.extra.common;
  const StateDict& own = report.extra.own;
  try {
    Position position{
        .step = optim::saved_count(common, "step"),
        .next_sequence = optim::saved_count(common, "next_sequence"),
        .seed = number_from(common.text("seed")),
        .data_hash = number_from(common.text("data_hash"))};
    if (!is_first) return position;
    position.totals = {.bytes_sent = static_cast<std::uint64_t>(
                           optim::saved_count(own, "bytes_sent")),
                       .seconds = own.real("seconds"),
                       .tokens = own.real("tokens")};
    if (own.has_scalar("val_loss"))
      position.totals.val_loss = own.real("val_loss");
    position.saves = optim::saved_count(own, "saves");
    position.save_seconds = own.real("save_seconds");
    return position;
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("--resume: {} is not a checkpoint of train_gpt: {}",
                            report.path, error.what()));
  }
}

void require_resumable(const Position& saved, const Position& now,
                       const Options& options, const std::string& path) {
  if (!options.resume_new_data && saved.data_hash != now.data_hash)
    reject(
        fmt::format("--resume: {} was trained on other data than --data "
                    "names; give the same, or --set "
                    "train_gpt.resume_new_data=true",
                    path));
  if (!options.resume_new_data && saved.seed != now.seed)
    reject(
        fmt::format("--resume: {} was trained with --seed {}, now it is {}; "
                    "give the same, or --set train_gpt.resume_new_data=true",
                    path, saved.seed, now.seed));
  if (saved.step > options.steps)
    reject(fmt::format("--steps must be at least {}, the step of {}, got {}",
                       saved.step, path, options.steps));
}

}  // namespace thinwire::train_gpt
