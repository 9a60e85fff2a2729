// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "zero/wire/filling_buckets.h"
#include "zero/wire/gradients.h"

namespace thinwire::zero {

/// Gradients of stage 1 with flat ranks. They are encoded in place.
class FlatWhole final : public LowBitGradients {
 public:
  using LowBitGradients::LowBitGradients;

  bool send(std::size_t b, View whole) override {
    encode_and_send(
        b, whole.subview(bucket(b).range.offset, bucket(b).range.size));
    return true;
  }
};

/// Gradients of stage 2 with flat ranks. If a window has one backward, they
/// fill buckets. Otherwise each is added to the residuals at once.
class FlatOneByOne final : public LowBitGradients {
 public:
  explicit FlatOneByOne(const ReductionSettings& settings)
      : LowBitGradients(settings), filling_(settings.shards) {}

  void begin(exchange::Backward which, DType gradients) override {
    LowBitGradients::begin(which, gradients);
    if (!adds_up()) filling_.begin(gradients);
  }
  void store(const exchange::GradientPart& part) override {
    if (adds_up())
      add(part.bucket, part.range, part.values);
    else
      filling_.store(part);
  }
  bool send(std::size_t b, View /*whole*/) override {
    if (!is_last()) return false;
    encode_and_send(b, adds_up() ? ConstView() : filling_.values(b));
    filling_.give_back(filling_.take(b));
    return true;
  }
  void begin_window() override {
    LowBitGradients::begin_window();
    filling_.clear();
  }

 private:
  FillingBuckets filling_;
};

}  // namespace thinwire::zero
