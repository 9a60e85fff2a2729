// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exchange/bucket_schedule.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/backward.h"

namespace thinwire::exchange {

/// What one backward computed of one parameter, as far as one bucket goes.
struct GradientPart {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  Range range{};  ///< Of the flat array.
  /// Empty: as GradientWindow::collect was given it, or the parameter did not
  /// come and counts as zero.
  ConstView values{};
  bool is_first = true;  ///< Else it is added to earlier backwards'.
};

/// Where gradients go from backward to the step: into a whole array, or into
/// buckets that are reduced and released.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void store(const GradientPart& part) = 0;
  /// All of this bucket has been stored. It is queued for other ranks, which is
  /// collective, or only looked at. Returns whether other ranks may have seen
  /// it, so that it cannot be taken back.
  virtual bool send(std::size_t bucket) = 0;
};

/// What has happened between two steps: which backwards there were, which
/// gradients have come, and which buckets of them have been sent.
///
/// Buckets are sent in one order on all ranks, last ones first, as soon as
/// they and all that come before them are complete, whatever the order in which
/// gradients come. Its functions throw Error(kFailedPrecondition) before
/// anything changes.
class GradientWindow {
 public:
  /// `buckets`: ranges of the flat array in its order. Both references outlive
  /// this object.
  GradientWindow(const ParameterLayout& layout, std::vector<Range> buckets,
                 GradientSink& sink);

  // ---- gradients one by one
  /// `sends`: buckets go to the sink's send() in this backward.
  void begin(Backward which, bool sends);
  /// Throws unless this parameter's gradient may come now.
  void require_open(std::size_t parameter) const;
  /// `gradient` is of the parameter's size, or empty where the sink knows it.
  void collect(std::size_t parameter, ConstView gradient);
  /// Parameters that have not come count as zero.
  void end();
  /// The backward has failed. False: some of the window has been sent, so it
  /// cannot begin anew; begin() refuses from then on.
  [[nodiscard]] bool cancel();

  // ---- whole
  /// Throws Error(kInvalidArgument) unless `range` is a bucket, or adjacent
  /// ones, not sent yet.
  void require_unsent(Range range) const;
  /// These buckets are final.
  void send(Range range);
  /// All that have not been sent.
  void send_rest();

  /// No other backward may come.
  void close() { is_complete_ = backwards_ > 0; }
  /// A step has taken the gradients.
  void restart();

  [[nodiscard]] std::int64_t backwards() const noexcept { return backwards_; }
  [[nodiscard]] bool in_backward() const noexcept { return in_backward_; }
  [[nodiscard]] bool is_complete() const noexcept { return is_complete_; }
  /// Some gradients are there, and none are coming now.
  [[nodiscard]] bool awaits_step() const noexcept {
    return backwards_ > 0 && !in_backward_;
  }
  /// The backward that goes on, or was the last.
  [[nodiscard]] Backward backward() const noexcept { return backward_; }
  /// Its buckets are sent as they fill.
  [[nodiscard]] bool sends() const noexcept { return sends_; }
  [[nodiscard]] LateGradients late() const noexcept { return late_; }
  /// Since restart(): other ranks may have seen some of it.
  [[nodiscard]] bool has_sent() const noexcept { return has_sent_; }
  /// It has come in this backward.
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return schedule_.is_ready(parameter);
  }
  /// It has come in any backward since restart().
  [[nodiscard]] bool has_gradient(std::size_t parameter) const {
    return has_gradient_[parameter];
  }
  [[nodiscard]] const std::vector<Range>& buckets() const noexcept {
    return schedule_.ranges();
  }

 private:
  void store(std::size_t parameter, ConstView gradient);
  void send_bucket(std::size_t bucket);
  [[nodiscard]] std::vector<std::size_t> buckets_in(Range range) const;

  const ParameterLayout& layout_;
  GradientSink& sink_;
  BucketSchedule schedule_;  // of this backward
  Backward backward_;
  std::int64_t backwards_ = 0;
  bool in_backward_ = false;
  bool is_complete_ = false;  // no other backward may come
  bool sends_ = false;
  bool has_sent_ = false;
  bool is_lost_ = false;  // cancelled after some of it was sent
  LateGradients late_;
  std::vector<bool> has_gradient_;  // per parameter
  std::vector<bool> is_sent_;       // per bucket
};

}  // namespace thinwire::exchange
