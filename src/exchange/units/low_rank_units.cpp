// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/low_rank_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/set_to_zero.h"
#include "exchange/checks.h"
#include "exchange/saturate.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire::exchange {

namespace {

constexpr int kFactorBits = 8;
// Rows of one column of a factor that have one scale.
constexpr std::size_t kRows = 64;
// Elements of a matrix that one task has, about.
constexpr std::size_t kTask = 65536;

using Values = std::array<float, kernels::kMostSummed>;

std::size_t blocks_of(std::size_t rows, std::size_t rank) {
  return (rows + kRows - 1) / kRows * rank;
}

bool are_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// splitmix64, by Vigna; in [-1, 1).
float next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1;
}

// Divides a column by a power of two, so that its largest magnitude is in
// [1/2, 1) and products with it neither overflow nor vanish.
void scale_by_power(std::span<float> column) {
  float largest = 0;
  for (const float x : column) largest = std::max(largest, std::abs(x));
  if (largest == 0) return;
  int exponent = 0;
  static_cast<void>(std::frexp(largest, &exponent));
  for (float& x : column) x = std::ldexp(x, -exponent);
}

}  // namespace

// ---- one part

// Its first run has blocks of P and of units without factors. Stage 2 completes
// that and begins the run of Q.
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
    std::uint64_t zeros = 0;  // columns of P that are 0
  };
  // Rows of a matrix, or columns.
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
  // Returns the elements of the part's values.
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
  Buffer p_;  // this rank's, and then the average
  Buffer q_;
  // Block::values are those of p_, and then those of the part.
  const BlockLayout first_layout_;
  const BlockLayout q_layout_;
  Residuals residuals_;  // of cuts
  FreshResiduals fresh_;
  Pipeline first_;
  Pipeline second_;

  // While it is in flight.
  ConstView x_{};
  View values_{};
  float factor_ = 1;
  float scale_ = 1;
  std::atomic<bool> is_finite_ = true;
};

// Returns the size of all P.
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
    for (std::size_t i = 0; i < rows; i += kRows) {
      const std::size_t size = std::min(kRows, rows - i);
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

// Calls body(part, first row, end row) for all matrices, or those whose
// residual this rank has.
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
  constexpr std::array<float, kRows> kNothing{};
  std::array<float, kRows> error;  // stays in the residual of the matrix
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
  for (float& value : mean) value *= scale_;
  saturate(mean, values_.dtype());
  kernels::convert(mean, values_.subview(of_part(b).offset, at.size));
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
                std::array<float, kRows> memory;
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

// All ranks find the same values, so they all end the part here, or none.
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

// ---- all parts

LowRankUnits::LowRankUnits(const Route& route, ThreadPool& pool,
                           UnitResiduals& residuals,
                           std::span<const MatrixShape> shapes, int low_rank,
                           Accepts accepts)
    : PartsInFlight(route, residuals, 4, accepts),
      pool_(pool),
      residuals_(residuals),
      codec_(codec_of(kFactorBits)),
      bucket_(bucket_rule(residuals.size(), route.comm.size(), kFactorBits)),
      spare_(residuals.size(), DType::kFloat32) {
  std::size_t factors = 0;
  std::size_t p_blocks = 0;
  std::size_t q_blocks = 0;
  for (std::size_t unit = 0; unit < shapes.size(); ++unit) {
    const MatrixShape& shape = shapes[unit];
    const std::size_t rank = shape.rank(low_rank);
    matrix_of_.push_back(rank == 0 ? kNone : matrices_.size());
    if (rank == 0) continue;
    generators_.push_back(unit);
    matrices_.push_back({.shape = shape,
                         .rank = rank,
                         .range = residuals.units()[unit].range,
                         .factor = factors,
                         .number = matrices_.size(),
                         .owner = residuals.cuts_of(unit).front().place /
                                  residuals.places().workers,
                         .first_p = p_blocks,
                         .first_q = q_blocks});
    factors += matrices_.back().q_size();
    p_blocks += blocks_of(shape.rows, rank);
    q_blocks += blocks_of(shape.columns, rank);
  }
  factors_ = Buffer(factors, DType::kFloat32);
  for (const Matrix& matrix : matrices_) {
    float* const q = factors_.as<float>().data() + matrix.factor;
    for (std::size_t i = 0; i < matrix.q_size(); ++i)
      q[i] = next_random(generators_[matrix.number]);
    static_cast<void>(
        kernels::orthonormalize(q, matrix.shape.columns, matrix.rank));
  }
}

std::unique_ptr<PartWay> LowRankUnits::make_way(
    std::span<const std::size_t> units) {
  return std::make_unique<Way>(*this, units);
}

std::size_t LowRankUnits::place_of(std::size_t owner, std::size_t block) const {
  const std::size_t workers = residuals_.places().workers;
  return owner * workers + block % workers;
}

float* LowRankUnits::residual(const Matrix& matrix) {
  const View in = matrix.in_spare ? spare_.view() : residuals_.worker();
  return in.as<float>().data() + matrix.range.offset;
}

float* LowRankUnits::next_residual(const Matrix& matrix) {
  const View in = matrix.in_spare ? residuals_.worker() : spare_.view();
  return in.as<float>().data() + matrix.range.offset;
}

void LowRankUnits::keep(const Matrix& matrix, const float* q,
                        std::uint64_t zeros) {
  const auto to = factors_.as<float>().subspan(matrix.factor, matrix.q_size());
  std::copy_n(q, to.size(), to.begin());
  for (std::size_t c = 0; c < matrix.rank; ++c) {
    const auto column =
        to.subspan(c * matrix.shape.columns, matrix.shape.columns);
    if ((zeros >> c & 1) == 0) {
      scale_by_power(column);
      continue;
    }
    for (float& x : column) x = next_random(generators_[matrix.number]);
    static_cast<void>(kernels::orthonormalize(column.data(), column.size(), 1));
  }
}

void LowRankUnits::inherit() {
  const auto workers = static_cast<float>(residuals_.places().workers);
  const auto e = residuals_.worker().as<float>();
  const auto d = residuals_.server().as<float>();
  for (std::size_t unit = 0; unit < matrix_of_.size(); ++unit) {
    if (matrix_of_[unit] == kNone) continue;
    for (const UnitResiduals::Cut& cut : residuals_.cuts_of(unit)) {
      if (!residuals_.serves(cut)) continue;
      for (std::size_t i = 0; i < cut.range.size; ++i) {
        float& served = d[cut.served + i];
        e[cut.range.offset + i] += workers * std::exchange(served, 0.0f);
      }
    }
  }
}

std::size_t LowRankUnits::bytes_per_pass() const {
  std::size_t bytes = 0;
  const auto add = [&](const Matrix& matrix, std::size_t rows,
                       std::size_t number) {
    for (std::size_t c = 0; c < matrix.rank; ++c)
      for (std::size_t i = 0; i < rows; i += kRows) {
        bytes += residuals_.bytes_at(place_of(matrix.owner, number++),
                                     std::min(kRows, rows - i), codec_);
      }
  };
  for (const Matrix& matrix : matrices_) {
    add(matrix, matrix.shape.rows, matrix.first_p);
    add(matrix, matrix.shape.columns, matrix.first_q);
  }
  for (std::size_t unit = 0; unit < matrix_of_.size(); ++unit)
    if (matrix_of_[unit] == kNone) bytes += residuals_.bytes_of(unit, codec_);
  return bytes;
}

// ---- the state

ConstView LowRankUnits::worker_error() {
  for (Matrix& matrix : matrices_) {
    if (!matrix.in_spare) continue;
    const float* const from = residual(matrix);
    std::copy_n(from, matrix.range.size, next_residual(matrix));
    matrix.in_spare = false;
  }
  return residuals_.worker();
}

Buffer LowRankUnits::copy_of_worker_error() {
  Buffer all(residuals_.size(), DType::kFloat32);
  kernels::convert(residuals_.worker(), all.view());
  for (const Matrix& matrix : matrices_)
    std::copy_n(residual(matrix), matrix.range.size,
                all.as<float>().data() + matrix.range.offset);
  return all;
}

void LowRankUnits::check(ConstView factors,
                         std::span<const std::uint64_t> generators) const {
  require_residual("the factors", factors, DType::kFloat32, factors_.size());
  if (generators.size() != generators_.size())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the generators must be {}, got {}",
                            generators_.size(), generators.size()));
}

void LowRankUnits::load(ConstView factors,
                        std::span<const std::uint64_t> generators) {
  kernels::convert(factors, factors_.view());
  std::ranges::copy(generators, generators_.begin());
}

}  // namespace thinwire::exchange
