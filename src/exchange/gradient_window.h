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

/// The gradient of one backward of one parameter, within one bucket.
struct GradientPart {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  Range range{};  ///< Of the flat array.
  /// Empty if GradientWindow::collect() got no values, or if the parameter has
  /// no gradient and counts as zero.
  ConstView values{};
  bool is_first = true;  ///< Else it is added to earlier backwards'.
};

/// Takes gradients from backward to the step: into a whole array, or into
/// buckets that are reduced and released.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void store(const GradientPart& part) = 0;
  /// Takes a bucket, all of which has been stored. It queues it for other
  /// ranks, which is collective, or only looks at it. Returns whether other
  /// ranks may have seen it, so that it cannot be taken back.
  virtual bool send(std::size_t bucket) = 0;
};

/// The backwards between two steps: which gradients have been collected, and
/// which buckets of them have been sent.
///
/// Buckets are sent in one order on all ranks, last ones first, as soon as they
/// and all before them are complete. The order in which gradients are collected
/// does not matter. Functions throw Error(kFailedPrecondition) before anything
/// changes.
class GradientWindow {
 public:
  /// `buckets` are ranges of the flat array in its order. Both references must
  /// outlive this object.
  GradientWindow(const ParameterLayout& layout, std::vector<Range> buckets,
                 GradientSink& sink);

  // ---- gradients one by one
  /// Begins a backward; `sends` says that buckets go to the sink's send() in
  /// it.
  void begin(Backward which, bool sends);
  /// Throws unless this parameter's gradient may be collected now.
  void require_open(std::size_t parameter) const;
  /// Collects `gradient`, which has the parameter's size, or is empty if the
  /// sink knows it.
  void collect(std::size_t parameter, ConstView gradient);
  /// Ends the backward. Parameters that have not been collected count as zero.
  void end();
  /// Ends a backward that has failed. Returns false if some of the window has
  /// been sent, so that it cannot begin again; begin() refuses from then on.
  [[nodiscard]] bool cancel();

  // ---- whole
  /// Throws Error(kInvalidArgument) unless `range` is a bucket, or adjacent
  /// ones, not sent yet.
  void require_unsent(Range range) const;
  /// Sends these buckets, which are final.
  void send(Range range);
  /// Sends all buckets that have not been sent.
  void send_rest();

  /// Closes the window to other backwards.
  void close() { is_complete_ = backwards_ > 0; }
  /// Begins a new window, once a step has taken the gradients.
  void restart();

  [[nodiscard]] std::int64_t backwards() const noexcept { return backwards_; }
  [[nodiscard]] bool in_backward() const noexcept { return in_backward_; }
  [[nodiscard]] bool is_complete() const noexcept { return is_complete_; }
  /// Returns whether there are gradients and no backward is in progress.
  [[nodiscard]] bool awaits_step() const noexcept {
    return backwards_ > 0 && !in_backward_;
  }
  /// Returns the backward in progress, or the last one.
  [[nodiscard]] Backward backward() const noexcept { return backward_; }
  /// Returns whether its buckets are sent as they fill.
  [[nodiscard]] bool sends() const noexcept { return sends_; }
  [[nodiscard]] LateGradients late() const noexcept { return late_; }
  /// Returns whether other ranks may have seen some of it since restart().
  [[nodiscard]] bool has_sent() const noexcept { return has_sent_; }
  /// Returns whether it has been collected in this backward.
  [[nodiscard]] bool is_ready(std::size_t parameter) const {
    return schedule_.is_ready(parameter);
  }
  /// Returns whether it has been collected in any backward since restart().
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
