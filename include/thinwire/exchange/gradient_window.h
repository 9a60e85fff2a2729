// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::exchange {

/// Position of a backward among those whose gradients one step uses.
struct Backward {
  bool is_first = true;  ///< Whether it is the first since the last step.
  /// Whether it is the last before the step, so that gradients need no further
  /// accumulation and may be sent at once.
  bool is_last = true;
};

/// Deferred gradients, which could not be sent during backward.
struct LateGradients {
  /// Number of elements not yet sent when backward ended, and the index of the
  /// parameter for which they waited, or -1.
  std::size_t elements = 0;
  std::int64_t parameter = -1;
};

class BucketSchedule;

/// The part of a gradient that lies in one bucket.
struct GradientPart {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  Range range{};  ///< Range of the flat array.
  /// Values of the part. Empty if GradientWindow::collect() received none, or
  /// if the parameter has no gradient in this backward and counts as zero.
  ConstView values{};
  /// Whether this is the window's first backward. Otherwise the part is added
  /// to those of earlier backwards.
  bool is_first = true;
};

/// Receiver of a GradientWindow's gradients. It keeps them in an array of all
/// gradients, or in buckets whose memory is released after their reduction.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Prepares for a backward. Returns whether its buckets are sent as soon as
  /// they are complete. If it throws, nothing has changed.
  virtual bool begin(Backward which) = 0;
  /// Throws Error(kInvalidArgument) unless collect() may pass this gradient.
  virtual void check(std::size_t /*parameter*/, ConstView /*gradient*/) const {}
  /// Stores a part, or adds it to those of earlier backwards.
  virtual void store(const GradientPart& part) = 0;
  /// Sends the bucket (collective), or inspects it locally if the sink does not
  /// communicate. All its parts have been stored. Returns whether other ranks
  /// may have received it, so that it cannot be withdrawn.
  virtual bool send(std::size_t bucket) = 0;
  /// Ends a backward after its last part has been stored.
  virtual void end() {}
  /// Discards the gradients of the window.
  virtual void clear() {}
};

/// Gradients between two steps: the backwards so far, the gradients collected,
/// and the buckets sent.
///
/// Buckets are sent in the same order on all ranks, the last bucket first,
/// independently of the order of collect(). A bucket is sent as soon as it and
/// all buckets before it in that order are complete. Calls out of order throw
/// Error(kFailedPrecondition) before anything changes.
///  window.begin({.is_last = true});
///  ... window.collect(k, gradient of parameter k) ...
///  window.end();
class GradientWindow {
 public:
  /// Creates a window for `buckets`, which are ranges of the flat array in
  /// ascending order. The layout and the sink must outlive this object.
  GradientWindow(const ParameterLayout& layout, std::vector<Range> buckets,
                 GradientSink& sink);
  ~GradientWindow();

  // ---- gradients one by one
  /// Begins a backward. Throws if a backward is already open, if the window has
  /// had its last one, or if `which.is_first` does not match.
  void begin(Backward which);
  /// Declares that the gradient of a parameter is complete for this backward.
  /// Call it at most once per parameter and backward. `gradient` has the
  /// parameter's size and is copied; it is empty if the sink already has the
  /// values.
  void collect(std::size_t parameter, ConstView gradient);
  /// Ends the backward. Parameters without a gradient count as zero.
  void end();
  /// Discards the gradients of a failed backward and restarts the window.
  /// Returns false if some of them have already been sent; begin() then always
  /// throws. Does nothing outside of a backward.
  [[nodiscard]] bool cancel();

  // ---- gradients of all parameters
  /// Runs one backward with all gradients. Any dtype is accepted.
  void collect_all(ConstView gradients);
  /// Throws Error(kInvalidArgument) unless `range` is a bucket, or several
  /// adjacent ones, that has not been sent.
  void require_unsent(Range range) const;
  /// Sends the buckets of a range whose elements are final.
  void send(Range range);
  /// Sends all buckets that have not been sent.
  void send_rest();

  /// Declares the last backward to be the window's last one.
  void close() { is_complete_ = backwards_ > 0; }
  /// Begins the next window, after a step has used the gradients.
  void restart();

  /// Returns the number of backwards since restart(), including one that has
  /// not ended.
  [[nodiscard]] std::int64_t backwards() const noexcept { return backwards_; }
  [[nodiscard]] bool in_backward() const noexcept { return in_backward_; }
  /// Returns whether no other backward may begin before restart().
  [[nodiscard]] bool is_complete() const noexcept { return is_complete_; }
  /// Returns whether there was a backward and none is running.
  [[nodiscard]] bool awaits_step() const noexcept {
    return backwards_ > 0 && !in_backward_;
  }
  /// Returns the deferred gradients of the last backward.
  [[nodiscard]] LateGradients late() const noexcept { return late_; }
  /// Returns whether other ranks may have seen gradients since restart().
  [[nodiscard]] bool has_sent() const noexcept { return has_sent_; }
  /// Returns whether this backward has the parameter's gradient.
  [[nodiscard]] bool is_ready(std::size_t parameter) const;
  /// Returns whether any backward since restart() had the parameter's gradient.
  [[nodiscard]] bool has_gradient(std::size_t parameter) const {
    return has_gradient_[parameter];
  }
  /// Returns the ranges whose elements are reduced together.
  [[nodiscard]] const std::vector<Range>& buckets() const noexcept;

 private:
  void reset();
  void require_open(std::size_t parameter) const;
  void store(std::size_t parameter, ConstView gradient);
  void send_bucket(std::size_t bucket);
  [[nodiscard]] std::vector<std::size_t> buckets_in(Range range) const;

  const ParameterLayout& layout_;
  GradientSink& sink_;
  const std::unique_ptr<BucketSchedule> schedule_;  // of this backward
  Backward backward_;
  std::int64_t backwards_ = 0;
  bool in_backward_ = false;
  bool is_complete_ = false;  // no other backward may begin
  bool sends_ = false;
  bool has_sent_ = false;
  bool is_lost_ = false;  // cancelled after some of it was sent
  LateGradients late_;
  std::vector<bool> has_gradient_;  // per parameter
  std::vector<bool> is_sent_;       // per bucket
};

}  // namespace thinwire::exchange
