// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "apps/train_gpt/agreed_failure.h"
#include "apps/train_gpt/memory.h"
#include "apps/train_gpt/report/report.h"
#include "apps/train_gpt/signals.h"
#include "apps/train_gpt/trainer_impl.h"

namespace thinwire::train_gpt {

void Trainer::tell_saved() {
  end_grace();
  const std::string_view signal = signal_name(save_signal());
  stop(signal.empty() ? "a signal" : signal);
  std::cerr << fmt::format(
      "stopped by {} at step {} of {}, checkpoint complete: {}; run again with "
      "--resume auto\n",
      summary_.stopped_by, newest_step_, options_.steps,
      checkpointer_->totals().newest);
}

// Of rank 0, without communication.
void Trainer::summarize() {
  summary_.optimizer = options_.optimizer;
  summary_.semantics = std::string(to_string(options_.semantics));
  summary_.precision = std::string(precision_name(options_.precision));
  summary_.skipped_steps = model_.engine().optimizer().progress().skipped;
  summary_.ranks = comm_.size();
  summary_.steps = options_.steps;
  summary_.params = model_.params().size();
  summary_.zero = static_cast<int>(options_.zero);
  summary_.offload = options_.offload;
  if (const auto& wire = config_.zero.wire; !wire.is_exact())
    summary_.zero_bits = fmt::format("{}/{}", wire.bits_up, wire.bits_down);
  if (checkpointer_) {
    summary_.saves = resumed_.saves + checkpointer_->totals().saves;
    summary_.save_seconds =
        resumed_.save_seconds + checkpointer_->totals().held_seconds;
  }
  summary_.add(writer_->totals());
}

// What steps recorded before a signal ended them. The summary first: a launcher
// may kill soon.
void Trainer::stop(std::string_view signal) {
  if (comm_.size() == 1) share_losses();  // local
  summary_.memory = memory_of_rank(memory_use().at_peak);
  summary_.stopped_at = writer_->newest() ? writer_->newest()->step : 0;
  summary_.stopped_by = signal;
  summarize();
  const std::vector<RunRecord> runs = {writer_->finish(summary_)};
  write_file(std::filesystem::path(options_.out) / "report.html",
             render_report(runs));
}

void Trainer::finish() {
  summarize();
  const std::vector<RunRecord> runs = {writer_->finish(summary_)};
  const auto report = std::filesystem::path(options_.out) / "report.html";
  write_file(report, render_report(runs));
  std::cout << render_table(runs);
  if (summary_.skipped_steps > 0) {
    std::cout << fmt::format(
        "{} of {} steps were skipped: a gradient was not finite\n",
        summary_.skipped_steps, options_.steps);
  }
  std::cout << "report: " << report.string() << '\n';
  if (!std::isfinite(summary_.final_val_loss)) {
    throw AgreedFailure(
        "the loss is not finite at the end: give a smaller --lr, or a --clip");
  }
}

}  // namespace thinwire::train_gpt
