// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "exchange/units/low_rank_units.h"

namespace thinwire::exchange {

// Path of one part. The first run sends P and the units without factors. Stage
// 2 completes it and begins the second run, which sends Q.
class LowRankUnits::Way final : public PartWay {
 public:
  Way(LowRankUnits& owner, std::span<const std::size_t> of)
      : PartWay(of),
        owner_(owner),
        p_(place_parts(), DType::kFloat32),
        q_(q_size_, DType::kFloat32),
        first_layout_(layout_of(first_blocks())),
        q_layout_(layout_of(q_blocks())),
        residuals_(owner.residuals_.of(first_layout_, cuts())),
        first_(route(), owner.pool_, first_layout_,
               {owner.codec_, owner.codec_}, Pipeline::Options()),
        second_(route(), owner.pool_, q_layout_, {owner.codec_, owner.codec_},
                Pipeline::Options()) {}

  void send(ConstView x, const UnitPart& part) override;
  void advance(std::size_t stage) override;
  bool complete() override;
  void accept() override;
  void drop() noexcept override {
    first_.drop();
    second_.drop();
  }
  [[nodiscard]] double wait_seconds() const override {
    return first_.wait_seconds() + second_.wait_seconds();
  }

 private:
  struct Part {
    std::size_t matrix;
    std::size_t at;  // first element of the part's values
    std::size_t p;   // first elements in p_ and q_
    std::size_t q;
    std::uint64_t zeros = 0;  // set of the columns of P that are 0
  };
  // Range of a matrix's rows or columns.
  struct Task {
    std::size_t part;
    std::size_t begin;
    std::size_t end;
  };

  [[nodiscard]] const Route& route() const { return owner_.route(); }
  std::size_t place_parts();
  [[nodiscard]] std::vector<Block> first_blocks() const;
  [[nodiscard]] std::vector<Block> q_blocks() const;
  void add_blocks(std::vector<Block>& blocks, const Part& part,
                  std::size_t first, std::size_t rows,
                  std::size_t number) const;
  [[nodiscard]] BlockLayout layout_of(const std::vector<Block>& blocks) const {
    return layout_in_buckets(blocks, owner_.bucket_, route().comm.size());
  }
  [[nodiscard]] std::vector<bool> cuts() const;
  [[nodiscard]] bool is_cut(std::size_t block) const {
    return first_layout_.blocks()[block].values.offset >= p_.size();
  }
  // Returns the range of a block in the part's values.
  [[nodiscard]] Range of_part(std::size_t block) const {
    const Range at = first_layout_.blocks()[block].values;
    return {at.offset - p_.size(), at.size};
  }
  [[nodiscard]] const Matrix& matrix(const Part& part) const {
    return owner_.matrices_[part.matrix];
  }
  [[nodiscard]] float* p(const Part& part) {
    return p_.as<float>().data() + part.p;
  }
  [[nodiscard]] float* q(const Part& part) {
    return q_.as<float>().data() + part.q;
  }
  [[nodiscard]] const float* old_q(const Part& part) const {
    return owner_.factors_.as<float>().data() + matrix(part).factor;
  }

  void encode_first(std::size_t block, std::uint8_t* record);
  void average_first(std::size_t block, SentRecords sent, std::uint8_t* record);
  void take_first(std::size_t block, const std::uint8_t* record);
  [[nodiscard]] RunSteps steps_of_q();
  void encode_values(std::span<const float> values, std::uint8_t* record);
  void take_values(const std::uint8_t* record, std::span<float> to);
  void run(Pipeline& pipeline, const BlockLayout& layout, RunSteps steps);
  void begin_q();
  template <class Body>
  void for_rows(bool all, Body&& body);

  LowRankUnits& owner_;
  std::vector<Part> parts_;
  std::size_t q_size_ = 0;
  Buffer p_;  // this rank's P, then the average
  Buffer q_;
  // Block::values refers to p_ followed by the part's values.
  const BlockLayout first_layout_;
  const BlockLayout q_layout_;
  Residuals residuals_;  // of the blocks that are cuts
  FreshResiduals fresh_;
  Pipeline first_;
  Pipeline second_;

  // State while the part is in flight.
  ConstView x_{};
  View values_{};
  float factor_ = 1;
  float scale_ = 1;
  std::atomic<bool> is_finite_ = true;
};

}  // namespace thinwire::exchange
