// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <span>

#include "examples/train_gpt/agreed_failure.h"
#include "examples/train_gpt/trainer.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {
namespace {

std::ptrdiff_t complete_checkpoints(const std::string& root) {
  try {
    return std::ranges::count_if(
        checkpoint::inspect(root),
        [](const checkpoint::Description& one) { return one.complete; });
  } catch (const Error& error) {
    // No checkpoint was found. If a directory cannot be read, the first save
    // fails.
    if (error.code() != ErrorCode::kUnavailable) throw;
    return 0;
  }
}

}  // namespace

// Runs code that fails on all ranks or on none. Returns false if it failed.
// Rank 0 reports the reason.
bool Trainer::all_or_none(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCommFailure) throw;
    if (is_first()) throw AgreedFailure(error.what());
    return false;
  }
}

// Returns whether resume() will find a checkpoint, as far as rank 0 sees.
bool Trainer::will_resume() {
  if (!options_.resume) return false;
  std::uint8_t found = *options_.resume == kAutoResume ? 0 : 1;
  if (is_first() && found == 0)
    found = complete_checkpoints(saving_.files.root) > 0 ? 1 : 0;
  comm_.broadcast(View(&found, 1, DType::kUInt8), 0);
  return found != 0;
}

// Resumes as --resume specifies. With "auto" it begins anew if nothing is saved
// yet.
bool Trainer::resume() {
  std::optional<checkpoint::LoadReport> found;
  const bool is_loaded = all_or_none([&] {
    const bool is_auto = *options_.resume == kAutoResume;
    found = model_.engine().resume(
        is_auto ? saving_.files.root : *options_.resume,
        checkpoint::LoadOptions{.fall_back = options_.resume_fallback});
    if (!found && !is_auto)
      throw Error(
          ErrorCode::kUnavailable,
          fmt::format("--resume: there is no complete checkpoint in {}; name "
                      "another, or give --resume auto, which begins anew if "
                      "this run has none",
                      *options_.resume));
  });
  if (!is_loaded) return false;
  const bool is_fine = prepare_everywhere(comm_, [&] {
    if (found) {
      resumed_ = position_of(*found, is_first());
      require_resumable(resumed_, position(), options_, found->path);
    }
    if (writer_ && found)
      writer_->resume(config_text(), resumed_.step, resumed_.totals);
    if (writer_ && !found) writer_->begin(config_text());
  });
  if (!is_fine) return false;
  if (found) {
    newest_step_ = resumed_.step;
    next_sequence_ = resumed_.next_sequence;
    is_resumed_ = true;
    if (writer_ && writer_->newest()) newest_loss_ = writer_->newest()->loss;
  }
  if (is_first())
    std::cerr << (found
                      ? fmt::format("resumed from {}: step {} of {}, saved by "
                                    "{} ranks\n",
                                    found->path, resumed_.step, options_.steps,
                                    found->world)
                      : fmt::format(
                            "no checkpoint in {}: the run begins anew\n",
                            saving_.files.root));
  return true;
}

// Warns that this run replaces checkpoints of the same name.
void Trainer::warn_of_other_runs() const {
  const std::string& root = saving_.files.root;
  if (const auto complete = complete_checkpoints(root); complete > 0)
    std::cerr << fmt::format(
        "warning: {} has {} checkpoints of another run: this one begins anew "
        "and replaces those of the steps it saves; --resume auto would "
        "continue\n",
        root, complete);
}

Position Trainer::position() const {
  Position position{.step = newest_step_,
                    .next_sequence = next_sequence_,
                    .seed = options_.seed,
                    .data_hash = data_hash_};
  if (!writer_ || !checkpointer_) return position;
  const auto& saved = checkpointer_->totals();
  position.totals = writer_->totals();
  position.saves = resumed_.saves + saved.saves + 1;
  position.save_seconds = resumed_.save_seconds + saved.held_seconds;
  return position;
}

checkpoint::Extra Trainer::extra() {
  share_losses();
  return extra_of(position(), is_first());
}

// Returns false if the run could not be saved. Rank 0 reports the reason.
bool Trainer::save_last() {
  if (newest_step_ < options_.steps || !saving_.is_periodic()) return true;
  return all_or_none(
      [&] { checkpointer_->finish([this] { return extra(); }); });
}

}  // namespace thinwire::train_gpt
