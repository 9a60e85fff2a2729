// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "apps/train_gpt/agreed_failure.h"
#include "apps/train_gpt/trainer_impl.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/error.h"

namespace thinwire::train_gpt {

// Runs what fails on all ranks or on none. False: it failed, and rank 0 tells.
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

// As --resume says; with auto from the beginning where nothing is saved yet.
bool Trainer::resume() {
  const Saving& saving = options_.saving;
  const checkpoint::LoadOptions how{.fall_back = saving.resume_fallback};
  std::optional<checkpoint::LoadReport> found;
  const bool is_loaded = all_or_none([&] {
    const bool is_auto = saving.resume == kAutoResume;
    found = model_.engine().resume(is_auto ? saving.files.root : saving.resume,
                                   how);
    if (!found && !is_auto)
      throw Error(
          ErrorCode::kUnavailable,
          fmt::format("--resume: there is no complete checkpoint in {}; name "
                      "another, or give --resume auto, which begins anew where "
                      "--checkpoints has none",
                      saving.resume));
  });
  if (!is_loaded) return false;
  const bool is_fine = prepare_everywhere(comm_, [&] {
    if (found) {
      resumed_ = position_of(*found, is_first());
      require_resumable(resumed_, position(), saving, options_.steps,
                        found->path);
    }
    if (writer_ && found) writer_->go_on(resumed_.step, resumed_.totals);
    if (writer_ && !found) writer_->begin();
  });
  if (is_fine && found) go_on();
  if (is_fine && is_first())
    std::cerr << (found
                      ? fmt::format(
                            "resumed from {}: step {} of {}, saved by {} "
                            "ranks\n",
                            found->path, resumed_.step, options_.steps,
                            found->world)
                      : fmt::format("no checkpoint in {}: from the beginning\n",
                                    saving.files.root));
  return is_fine;
}

// What this run writes takes the place of what has the same name.
void Trainer::warn_of_other_runs() const {
  const std::string& root = options_.saving.files.root;
  std::vector<checkpoint::Description> all;
  try {
    all = checkpoint::inspect(root);
  } catch (const Error& error) {
    // There is none; a directory that cannot be read fails in the first save.
    if (error.code() != ErrorCode::kUnavailable) throw;
  }
  const auto complete = std::count_if(
      all.begin(), all.end(), [](const auto& one) { return one.complete; });
  if (complete > 0)
    std::cerr << fmt::format(
        "warning: {} has {} checkpoints of another run: this one begins anew "
        "and replaces those of the steps it saves; --resume auto would go on\n",
        root, complete);
}

void Trainer::go_on() {
  newest_step_ = resumed_.step;
  next_sequence_ = resumed_.next_sequence;
  summary_.resumed_from = resumed_.step;
  if (writer_ && writer_->newest()) newest_loss_ = writer_->newest()->loss;
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

}  // namespace thinwire::train_gpt
