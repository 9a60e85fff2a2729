// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "exchange/exact_average.h"
#include "optim/step_pieces.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/bucket_rule.h"
#include "thinwire/optim/expert_parallel.h"

namespace thinwire::optim {

// The experts of one communicator's ranks, or the fp32 parameters of a 16-bit
// model.
struct Section {
  Section(comm::Communicator& c, ParameterLayout l, std::size_t offset,
          const MakeRule& make_rule, const ExchangeOptions& options,
          ThreadPool& pool)
      : comm(c),
        layout(std::move(l)),
        range{offset, layout.size()},
        rule(make_rule(layout)),
        average(
            c, pool, layout.size(),
            exchange::bucket_elements(options.bucket_elements, layout.size(),
                                      c.hosts(), exchange::kExactBits)) {}

  comm::Communicator& comm;
  ParameterLayout layout;
  Range range;  // in the whole flat array
  std::unique_ptr<UpdateRule> rule;
  exchange::ExactAverage average;
};

struct ExpertParallel::Impl final : EarlyGradients, LocalSteps {
  Impl(comm::Communicator& c, const ParameterLayout& l,
       const ExchangeOptions& o)
      : comm(c), layout(l), options(o), pool(o.num_threads), groups([this] {
          std::vector<ParameterGroups*> all{&dense->groups()};
          for (const auto& section : sections)
            all.push_back(section->rule.get());
          return all;
        }) {}

  // ---- the dense optimizer's interfaces, adapted
  [[nodiscard]] bool reduces() const noexcept override;
  void reduce(View grads, Range range) override;
  [[nodiscard]] std::vector<Range> buckets() const override;
  [[nodiscard]] bool measures() const noexcept override;
  void measure(ConstView grads, Range range) override;
  void finish() override;
  void forget() noexcept override;
  [[nodiscard]] std::int64_t steps_behind() const noexcept override;
  void synchronize(View params) override;
  [[nodiscard]] ConstView exchanged_params(ConstView params) const override;
  void repeat(View params) override;

  comm::Communicator& comm;
  const ParameterLayout layout;
  const ExchangeOptions options;
  ThreadPool pool;
  JoinedGroups groups;
  std::unique_ptr<Optimizer> dense;
  std::size_t dense_size = 0;
  std::size_t num_dense = 0;  // number of dense parameters
  std::size_t cut = 0;        // element at which arrays may be joined; 0: none
  std::string prefix;         // prefix of the names of experts' arrays
  std::vector<std::unique_ptr<Section>> sections;
  mutable Buffer exchanged;  // used during local steps of the dense parameters

  struct Norm {
    double value = 0;
    int nonfinite_rank = -1;
  };

  // Returns the divisor of a section's gradients after their average.
  [[nodiscard]] double divisor(const Section& section,
                               const StepInput& in) const {
    const DType dtype = in.grads.dtype_at(section.range.offset);
    return in.loss_scale * exchange::sum_divisor(section.comm, dtype) *
           comm.size() / section.comm.size();
  }
  [[nodiscard]] View dense_of(View array) const {
    return array.empty() ? array : array.subview(0, dense_size);
  }
  [[nodiscard]] Section& section_of(Range range) {
    for (const auto& section : sections)
      if (range.offset >= section->range.offset &&
          range.end() <= section->range.end())
        return *section;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("range must be of dense parameters, or of experts "
                            "of one communicator, got {} of size {}",
                            range.offset, range.size));
  }
  [[nodiscard]] Norm norm(const StepInput& in, StepReport& report);
  [[nodiscard]] std::vector<State> states() const;
  [[nodiscard]] std::string describe_experts() const;
};

}  // namespace thinwire::optim
