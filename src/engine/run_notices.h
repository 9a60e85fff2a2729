// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/config/config.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::engine {

/// Returns the name of the option that gives the last step in which the
/// variance changes, or an empty text if the optimizer has none.
[[nodiscard]] std::string_view freeze_key_of(const config::Config& config);

/// Traffic of one rank in a run, from its first step on.
struct RunTotals {
  std::uint64_t bytes_sent = 0;
  /// Additional bytes if every step had sent as many as the latest exact step.
  /// If that step averaged over b bits, its bytes count 32 / b times.
  std::int64_t bytes_saved = 0;
};

/// Lines that appear once in a run: the way of averaging when it changes, a run
/// that will never compress, skipped steps, and equal gradients. All ranks make
/// the same calls, and only rank 0 gets lines.
class RunNotices {
 public:
  enum class Kind {
    kInfo,
    kNews,     ///< A change of the run.
    kMistake,  ///< Most likely a mistake of the program.
  };
  struct Notice {
    Kind kind;
    std::string text;
  };
  using Notices = std::vector<Notice>;
  /// The part that checkpoints keep.
  struct State {
    std::set<std::string> announced{};
    /// Bytes of the latest exact step, as sent and as if it had averaged in
    /// fp32, with `ranks` ranks. 0 if there was no such step.
    std::uint64_t of_exact_step = 0;
    std::uint64_t exactly = 0;
    int ranks = 1;
    std::uint64_t sent = 0;
    std::uint64_t if_exact = 0;
  };
  /// Values of the optimizer after a step.
  struct Now {
    std::int64_t steps = 0;  ///< Applied so far.
    std::int64_t skipped = 0;
    /// The last exact step of an optimizer that compresses.
    std::optional<std::int64_t> freeze_step{};
    std::optional<double> loss_scale{};  ///< Loss scale of the next step, if
                                         ///< known.
  };

  /// `own_gradients` is advice on passing each rank's own gradients.
  RunNotices(const config::Config& config, int rank, int ranks,
             std::string own_gradients);

  /// Returns notices about a run that would end before it compresses.
  [[nodiscard]] Notices at_start(std::optional<std::int64_t> freeze_step);
  /// Counts a step and returns new notices.
  [[nodiscard]] Notices after_step(const optim::StepReport& report,
                                   const Now& now);
  /// Returns a line for the skipped steps 1, 2, 4, 8 and so on.
  [[nodiscard]] Notices skipped(const optim::StepReport& report,
                                const Now& now) const;
  /// Continues a run whose next step is of this phase, without its State.
  void continue_in(optim::Phase phase);

  [[nodiscard]] RunTotals totals() const noexcept;
  [[nodiscard]] const State& state() const noexcept { return state_; }
  /// Continues the run of this state.
  void restore(State state);

 private:
  void count(const optim::StepReport& report);
  void add(Notices& notices, Kind kind, std::string text) const;
  void tell_how_ranks_average(Notices& notices, const optim::StepReport& report,
                              const Now& now, std::uint64_t before);
  [[nodiscard]] std::uint64_t among_ranks(std::uint64_t sent) const noexcept;
  [[nodiscard]] std::string what_travels(optim::Phase phase) const;

  int rank_;
  int ranks_;
  std::string own_gradients_;
  std::string_view freeze_key_;  // empty if there is none
  std::optional<std::int64_t> total_steps_{};
  optim::AverageOptions average_;
  std::int64_t syncs_every_;  // of an outer loop; 0 without one
  bool told_equal_gradients_ = false;
  State state_{};
};

}  // namespace thinwire::engine
