// SPDX-License-Identifier: Apache-2.0
// The kernels of a low-rank average of one matrix, as a single rank runs them.
#include <algorithm>
#include <cmath>
#include <memory>

#include "apps/thinwire/bench/rows.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/low_rank.h"

namespace thinwire::apps::bench {

namespace {

constexpr std::size_t kMostColumns = 4096;

// A square matrix, or one of kMostColumns; at most one row of the elements is
// left over.
std::size_t columns_of(std::size_t elements) {
  const double root = std::sqrt(static_cast<double>(elements));
  return std::min(kMostColumns, static_cast<std::size_t>(root));
}

class LowRankWork {
 public:
  LowRankWork(std::size_t elements, std::size_t rank)
      : columns_(columns_of(elements)),
        rows_(elements / columns_),
        rank_(rank),
        grads_(random_values(rows_ * columns_, 1)),
        residual_(random_values(rows_ * columns_, 2)),
        sum_(Buffer::of<float>(rows_ * columns_)),
        p_(Buffer::of<float>(rows_ * rank)),
        q_(random_values(columns_ * rank, 3)) {}

  void run(ThreadPool& pool) {
    float* const p = p_.as<float>().data();
    float* const q = q_.as<float>().data();
    float* const m = sum_.as<float>().data();
    const float* const residual = residual_.as<float>().data();
    over_rows(pool, [&](std::size_t first, std::size_t rows) {
      const std::size_t at = first * columns_;
      kernels::low_rank_rows({grads_.view().subview(at, rows * columns_), 1,
                              residual + at, m + at, rows, columns_},
                             q, rank_, p + first, rows_);
    });
    (void)kernels::orthonormalize(p, rows_, rank_);
    pool.for_ranges(columns_, 1, [&](std::size_t begin, std::size_t end) {
      kernels::low_rank_columns(m, rows_, columns_, p, rank_, begin, end, q);
    });
    over_rows(pool, [&](std::size_t first, std::size_t rows) {
      const std::size_t at = first * columns_;
      kernels::low_rank_product(p + first, rows_, q, rank_, rows, columns_,
                                m + at, 1,
                                grads_.view().subview(at, rows * columns_));
    });
  }

 private:
  template <class Body>
  void over_rows(ThreadPool& pool, const Body& body) const {
    const std::size_t piece =
        std::max<std::size_t>(1, kPieceElements / columns_);
    pool.for_ranges(rows_, piece, [&](std::size_t begin, std::size_t end) {
      body(begin, end - begin);
    });
  }

  std::size_t columns_;
  std::size_t rows_;
  std::size_t rank_;
  Buffer grads_;
  Buffer residual_;
  Buffer sum_;
  Buffer p_;
  Buffer q_;
};

}  // namespace

Prepare low_rank_average(std::size_t rank) {
  return [rank](std::size_t elements, ThreadPool& pool) -> Variant {
    const auto work = std::make_shared<LowRankWork>(elements, rank);
    return {[work, &pool] { work->run(pool); }};
  };
}

}  // namespace thinwire::apps::bench
