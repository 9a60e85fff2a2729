// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::exchange {

/// Place of a backward among those whose gradients one step uses.
struct Backward {
  bool is_first = true;  ///< First one since the last step.
  /// Last one before the step: gradients do not need to be accumulated further,
  /// and may be sent as soon as they exist.
  bool is_last = true;
};

/// Deferred gradients: those that could not be sent during backward.
struct LateGradients {
  /// Elements not yet sent when backward ended, and the index of the parameter
  /// that they waited for, or -1 if there was none.
  std::size_t elements = 0;
  std::int64_t parameter = -1;
};

class BucketSchedule;

/// Part of a gradient that lies in one bucket.
struct GradientPart {
  std::size_t parameter = 0;
  std::size_t bucket = 0;
  Range range{};  ///< Range of the flat array.
  /// Values of the part. They are empty if GradientWindow::collect() got none,
  /// and if the parameter has no gradient in this backward and counts as zero.
  ConstView values{};
  /// Whether this is the window's first backward. If not, the part is added to
  /// those of earlier backwards.
  bool is_first = true;
};

/// Receiver of the gradients of a GradientWindow. It keeps them in an array of
/// all gradients, or in memory of buckets that are reduced and released.
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
  /// Queues a bucket for other ranks, which is collective, or only reads it.
  /// All of it has been stored. Returns whether other ranks may have seen it,
  /// so that it cannot be taken back.
  virtual bool send(std::size_t bucket) = 0;
  /// Finishes a backward whose last part has been stored.
  virtual void end() {}
  /// Discards the gradients of the window.
  virtual void clear() {}
};

/// Gradients between two steps: which backwards there were, which gradients
/// have been collected, and which of their buckets have been sent.
///
/// Buckets are sent in one order on all ranks, last ones first, whatever the
/// order of collect(). A bucket is sent as soon as it and all buckets before it
/// in that order are complete. Calls out of order throw
/// Error(kFailedPrecondition) before anything changes.
///
///   window.begin({.is_last = true});
///   ... window.collect(k, gradient of parameter k) ...
///   window.end();
class GradientWindow {
 public:
  /// Makes a window for `buckets`, ranges of the flat array in its order. The
  /// layout and the sink must outlive this object.
  GradientWindow(const ParameterLayout& layout, std::vector<Range> buckets,
                 GradientSink& sink);
  ~GradientWindow();

  // ---- gradients one by one
  /// Begins a backward. Throws inside another backward, after the last one, and
  /// if the first one is missing or repeated.
  void begin(Backward which);
  /// Declares that the gradient of a parameter is complete for this backward.
  /// At most once per parameter and backward. `gradient` has the parameter's
  /// size and is copied; it is empty if the sink has the values already.
  void collect(std::size_t parameter, ConstView gradient);
  /// Ends the backward. Parameters without a gradient count as zero.
  void end();
  /// Discards the gradients of a backward that failed, and begins the window
  /// anew. Returns false if some of them have been sent already; begin() then
  /// throws from now on. Outside of a backward it does nothing.
  [[nodiscard]] bool cancel();

  // ---- gradients of all parameters
  /// Runs one backward with all gradients. Any dtype is accepted.
  void collect_all(ConstView gradients);
  /// Throws Error(kInvalidArgument) unless `range` is a bucket, or adjacent
  /// ones, not sent yet.
  void require_unsent(Range range) const;
  /// Sends the buckets of a range, whose elements are final.
  void send(Range range);
  /// Sends all buckets that have not been sent.
  void send_rest();

  /// Makes the last backward the window's last one.
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
