// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/low_rank_way.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "exchange/write_mean.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire::exchange {

namespace {

// Approximate number of matrix elements per task.
constexpr std::size_t kTask = 65536;

using Values = std::array<float, kernels::kMostSummed>;

bool are_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

}  // namespace

// Places the parts of all matrices, and returns the size of all P.
std::size_t LowRankUnits::Way::place_parts() {
  std::size_t at = 0;
  std::size_t p_size = 0;
  for (const std::size_t unit : units) {
    const std::size_t number = owner_.matrix_of_[unit];
    if (number != kNone) {
      parts_.push_back({number, at, p_size, q_size_});
      p_size += owner_.matrices_[number].p_size();
      q_size_ += owner_.matrices_[number].q_size();
    }
    at += owner_.residuals_.units()[unit].range.size;
  }
  return p_size;
}

void LowRankUnits::Way::add_blocks(std::vector<Block>& blocks, const Part& part,
                                   std::size_t first, std::size_t rows,
                                   std::size_t number) const {
  const Matrix& of = matrix(part);
  for (std::size_t c = 0; c < of.rank; ++c)
    for (std::size_t i = 0; i < rows; i += kFactorRows) {
      const std::size_t size = std::min(kFactorRows, rows - i);
      blocks.push_back({{first + c * rows + i, size},
                        {0, size},
                        static_cast<int>(owner_.place_of(of.owner, number++))});
    }
}

std::vector<Block> LowRankUnits::Way::first_blocks() const {
  std::vector<Block> blocks;
  std::size_t at = p_.size();
  auto part = parts_.begin();
  for (const std::size_t unit : units) {
    if (owner_.matrix_of_[unit] != kNone) {
      add_blocks(blocks, *part, part->p, matrix(*part).shape.rows,
                 matrix(*part).first_p);
      ++part;
    } else {
      owner_.residuals_.add_blocks(unit, at, blocks);
    }
    at += owner_.residuals_.units()[unit].range.size;
  }
  return blocks;
}

std::vector<Block> LowRankUnits::Way::q_blocks() const {
  std::vector<Block> blocks;
  for (const Part& part : parts_)
    add_blocks(blocks, part, part.q, matrix(part).shape.columns,
               matrix(part).first_q);
  return blocks;
}

std::vector<bool> LowRankUnits::Way::cuts() const {
  std::vector<bool> are;
  for (std::size_t b = 0; b < first_layout_.blocks().size(); ++b)
    are.push_back(is_cut(b));
  return are;
}

// Calls body(part, first row, end row) for all matrices, or only for matrices
// whose residual this rank stores.
template <class Body>
void LowRankUnits::Way::for_rows(bool all, Body&& body) {
  std::vector<Task> tasks;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const MatrixShape& shape = matrix(parts_[k]).shape;
    if (!all && !owner_.is_own(matrix(parts_[k]))) continue;
    const std::size_t rows = std::max<std::size_t>(16, kTask / shape.columns);
    for (std::size_t i = 0; i < shape.rows; i += rows)
      tasks.push_back({k, i, std::min(shape.rows, i + rows)});
  }
  owner_.pool_.for_each(tasks.size(), [&](std::size_t t) {
    body(parts_[tasks[t].part], tasks[t].begin, tasks[t].end);
  });
}

void LowRankUnits::Way::send(ConstView x, const UnitPart& part) {
  x_ = x;
  values_ = part.values;
  factor_ = static_cast<float>(1 / part.loss_scale);
  scale_ = static_cast<float>(part.loss_scale);
  is_finite_ = true;
  residuals_.worker.write_to(fresh_.worker);
  residuals_.server.write_to(fresh_.server);
  for_rows(false, [&](const Part& of, std::size_t begin, std::size_t end) {
    const Matrix& m = matrix(of);
    const std::size_t first = begin * m.shape.columns;
    const std::size_t size = (end - begin) * m.shape.columns;
    kernels::low_rank_rows({.values = x_.subview(of.at + first, size),
                            .factor = factor_,
                            .residual = owner_.residual(m) + first,
                            .sum = owner_.next_residual(m) + first,
                            .rows = end - begin,
                            .columns = m.shape.columns},
                           old_q(of), m.rank, p(of) + begin, m.shape.rows);
  });
  run(first_, first_layout_,
      {.encode = [this](std::size_t b,
                        std::uint8_t* record) { encode_first(b, record); },
       .average = [this](
                      std::size_t b, SentRecords sent,
                      std::uint8_t* record) { average_first(b, sent, record); },
       .take = [this](std::size_t b,
                      const std::uint8_t* record) { take_first(b, record); }});
}

void LowRankUnits::Way::run(Pipeline& pipeline, const BlockLayout& layout,
                            RunSteps steps) {
  pipeline.begin(std::move(steps));
  for (std::size_t k = 0; k < layout.buckets().size(); ++k) pipeline.ready(k);
}

// ---- records

void LowRankUnits::Way::encode_values(std::span<const float> values,
                                      std::uint8_t* record) {
  constexpr std::array<float, kFactorRows> kNothing{};
  std::array<float, kFactorRows> error;  // unused
  owner_.codec_.encode({.values = values,
                        .residual = std::span(kNothing).first(values.size()),
                        .error = std::span(error).first(values.size())},
                       record);
}

void LowRankUnits::Way::take_values(const std::uint8_t* record,
                                    std::span<float> to) {
  owner_.codec_.decode(record, to);
  if (!are_finite(to)) is_finite_ = false;
}

void LowRankUnits::Way::encode_first(std::size_t b, std::uint8_t* record) {
  if (!is_cut(b)) {
    const Range at = first_layout_.blocks()[b].values;
    return encode_values(p_.as<float>().subspan(at.offset, at.size), record);
  }
  kernels::QuantizedSum sum = residuals_.worker.sum(b);
  sum.values = x_.subview(of_part(b).offset, of_part(b).size);
  sum.factor = factor_;
  owner_.codec_.encode(sum, record);
}

void LowRankUnits::Way::average_first(std::size_t b, SentRecords sent,
                                      std::uint8_t* record) {
  Values values;
  const auto mean =
      std::span(values).first(first_layout_.blocks()[b].values.size);
  owner_.codec_.average(sent, mean);
  if (!is_cut(b)) return encode_values(mean, record);
  kernels::QuantizedSum sum = residuals_.server.sum(b);
  sum.values = mean;
  owner_.codec_.encode(sum, record);
}

void LowRankUnits::Way::take_first(std::size_t b, const std::uint8_t* record) {
  const Range at = first_layout_.blocks()[b].values;
  if (!is_cut(b))
    return take_values(record, p_.as<float>().subspan(at.offset, at.size));
  Values memory;
  const auto mean = std::span(memory).first(at.size);
  take_values(record, mean);
  write_mean(mean, scale_, true, values_.subview(of_part(b).offset, at.size));
}

RunSteps LowRankUnits::Way::steps_of_q() {
  const auto values = [this](std::size_t b) {
    const Range at = q_layout_.blocks()[b].values;
    return q_.as<float>().subspan(at.offset, at.size);
  };
  return {.encode =
              [=, this](std::size_t b, std::uint8_t* record) {
                encode_values(values(b), record);
              },
          .average =
              [=, this](std::size_t b, SentRecords sent, std::uint8_t* record) {
                std::array<float, kFactorRows> memory;
                const auto mean = std::span(memory).first(values(b).size());
                owner_.codec_.average(sent, mean);
                encode_values(mean, record);
              },
          .take =
              [=, this](std::size_t b, const std::uint8_t* record) {
                take_values(record, values(b));
              }};
}

// ---- stages

// Because all ranks compute the same values, they all end the part here or none
// does.
void LowRankUnits::Way::advance(std::size_t stage) {
  if (stage == 1) return first_.queue_rest();
  if (stage == 2) {
    first_.finish();
    if (is_finite_) begin_q();
  } else if (is_finite_) {
    second_.queue_rest();
  }
}

void LowRankUnits::Way::begin_q() {
  owner_.pool_.for_each(parts_.size(), [&](std::size_t k) {
    Part& part = parts_[k];
    part.zeros = kernels::orthonormalize(p(part), matrix(part).shape.rows,
                                         matrix(part).rank);
  });
  const auto threads = static_cast<std::size_t>(owner_.pool_.num_threads());
  std::vector<Task> tasks;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    const MatrixShape& shape = matrix(parts_[k]).shape;
    if (!owner_.is_own(matrix(parts_[k]))) continue;
    const std::size_t pieces = shape.size() > kTask ? threads : 1;
    const std::size_t columns = (shape.columns / pieces + 63) / 64 * 64;
    for (std::size_t j = 0; j < shape.columns; j += columns)
      tasks.push_back({k, j, std::min(shape.columns, j + columns)});
  }
  owner_.pool_.for_each(tasks.size(), [&](std::size_t t) {
    const Part& part = parts_[tasks[t].part];
    const Matrix& m = matrix(part);
    kernels::low_rank_columns(owner_.next_residual(m), m.shape.rows,
                              m.shape.columns, p(part), m.rank, tasks[t].begin,
                              tasks[t].end, q(part));
  });
  run(second_, q_layout_, steps_of_q());
}

bool LowRankUnits::Way::complete() {
  if (!is_finite_) return false;
  second_.finish();
  if (!is_finite_) return false;
  for_rows(true, [&](const Part& of, std::size_t begin, std::size_t end) {
    const Matrix& m = matrix(of);
    const std::size_t first = begin * m.shape.columns;
    const std::size_t size = (end - begin) * m.shape.columns;
    kernels::low_rank_product(
        p(of) + begin, m.shape.rows, q(of), m.rank, end - begin,
        m.shape.columns,
        owner_.is_own(m) ? owner_.next_residual(m) + first : nullptr, scale_,
        values_.subview(of.at + first, size));
  });
  return true;
}

void LowRankUnits::Way::accept() {
  residuals_.accept(owner_.pool_);
  for (const Part& part : parts_) {
    Matrix& m = owner_.matrices_[part.matrix];
    m.in_spare = !m.in_spare;
    owner_.keep(m, q(part), part.zeros);
  }
}

}  // namespace thinwire::exchange
