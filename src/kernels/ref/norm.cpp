// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <cmath>
#include <vector>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/ordered_sum.h"

namespace thinwire::kernels::ref {
namespace {

template <class Term>
void chunk_sums(ConstView values, std::span<double> sums, Term term) {
  require_chunks(values, sums.size());
  visit_floats(values, [&](const auto* x) {
    for_each_chunk(values.size(), [&](std::size_t begin, std::size_t end) {
      OrderedSum sum;
      for (std::size_t i = begin; i < end; ++i) {
        sum.add(term(static_cast<double>(to_float(x[i]))));
      }
      sums[begin / kSumChunk] = sum.total();
    });
  });
}

}  // namespace

void chunk_sums_of_squares(ConstView values, std::span<double> sums) {
  chunk_sums(values, sums, [](double x) { return x * x; });
}

void chunk_sums_of_abs(ConstView values, std::span<double> sums) {
  chunk_sums(values, sums, [](double x) { return std::abs(x); });
}

double sum_of_squares(ConstView values) {
  std::vector<double> sums(sum_chunks(values.size()));
  chunk_sums_of_squares(values, sums);
  return sum_of_chunks(sums);
}

}  // namespace thinwire::kernels::ref
