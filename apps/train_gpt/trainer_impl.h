// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/train_gpt/launch.h"
#include "apps/train_gpt/model.h"
#include "apps/train_gpt/options/options.h"
#include "apps/train_gpt/progress.h"
#include "apps/train_gpt/report/run_record.h"
#include "apps/train_gpt/resume.h"
#include "apps/train_gpt/text_data.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/engine/checkpointer.h"

namespace thinwire::train_gpt {

/// One rank's part of a run: trainer.cpp takes its steps, trainer_saving.cpp
/// saves it and goes on from what was saved, trainer_ending.cpp says how it
/// went.
class Trainer {
 public:
  Trainer(const Options& options, comm::Communicator& comm);

  // Local; throws what stops the run before it begins.
  void prepare();
  [[nodiscard]] Ending run();

 private:
  [[nodiscard]] bool is_first() const { return comm_.rank() == 0; }
  [[nodiscard]] std::int64_t sequences_per_backward() const {
    return static_cast<std::int64_t>(shard_.world_size * shard_.sequences);
  }
  [[nodiscard]] bool begin();
  [[nodiscard]] bool goes_on();
  [[nodiscard]] bool resume();
  void go_on();
  void warn_of_other_runs() const;
  engine::EngineReport step(std::int64_t step);
  void synchronize();
  void share_losses();
  [[nodiscard]] double validate();
  [[nodiscard]] std::string checksum_of_masters();
  [[nodiscard]] bool take_steps();
  [[nodiscard]] bool save_last();
  [[nodiscard]] checkpoint::Extra extra();
  [[nodiscard]] bool is_validated(std::int64_t step) const;
  void validate_after(std::int64_t step);
  [[nodiscard]] Position position() const;
  [[nodiscard]] bool all_or_none(const std::function<void()>& body);
  void tell_saved();
  void summarize();
  void finish();
  void stop(std::string_view signal);

  const Options& options_;
  comm::Communicator& comm_;
  const config::Config config_;
  const config::BatchSizes batch_;
  const Shard shard_;
  Model model_;
  std::optional<TextData> data_;
  std::optional<RunWriter> writer_;  // Of rank 0.
  Progress progress_;
  std::vector<StepRow> unshared_;  // Their losses are this rank's own.
  double newest_loss_ = 0;         // Mean over ranks.
  std::uint64_t data_hash_ = 0;
  std::int64_t newest_step_ = 0;    // Taken on this rank.
  std::int64_t next_sequence_ = 0;  // Of all ranks.
  Position resumed_{};
  std::optional<engine::Checkpointer> checkpointer_;
  Summary summary_;
};

}  // namespace thinwire::train_gpt
