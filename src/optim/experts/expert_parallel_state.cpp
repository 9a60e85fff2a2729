// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "optim/experts/expert_parallel_impl.h"
#include "optim/experts/joined_state.h"
#include "optim/saved_state.h"

// Joint state of the experts and the dense optimizer.
namespace thinwire::optim {

namespace {

// Key of a text that lists the arrays with a value per parameter. A state saved
// in another stage may contain other arrays than this stage's.
constexpr const char* kOfParameters = "experts.parameter_arrays";
// Key of a scalar of the owner.
constexpr const char* kExperts = "experts";

}  // namespace

std::vector<State> ExpertParallel::Impl::states() const {
  std::vector<State> all;
  all.push_back(dense->state());
  for (const auto& section : sections)
    section->rule->add_to(all.emplace_back(), Sharing::kSame, {section->range});
  return all;
}

std::string ExpertParallel::Impl::describe_experts() const {
  std::string text;
  for (const auto& section : sections) text += section->layout.describe();
  return text;
}

// The values per parameter are 0 for experts, because only low-bit optimizers
// have such values.
State ExpertParallel::state() const {
  std::vector<State> parts = impl_->states();
  State all = std::move(parts.front());
  std::string of_parameters;
  for (StateArray& array : all.arrays) {
    // During local steps 0/1 Adam saves parameters, but without the experts
    // they are only a part of the model.
    array.is_parameters = false;
    if (array.axis != Axis::kParameter) continue;
    of_parameters += array.name + ' ';
    array.size = impl_->layout.parameters().size();
    array.read = [read = std::move(array.read), dense = impl_->num_dense](
                     Range range, View to) {
      if (to.bytes() != 0) std::memset(to.data(), 0, to.bytes());
      if (range.offset >= dense) return;
      const std::size_t size = std::min(range.size, dense - range.offset);
      read({range.offset, size}, to.subview(0, size));
    };
  }
  if (!of_parameters.empty()) all.common.put_text(kOfParameters, of_parameters);
  for (std::size_t p = 1; p < parts.size(); ++p)
    join(all, std::move(parts[p]), impl_->prefix);
  all.owner.put_text(kExperts, impl_->describe_experts());
  return all;
}

Optimizer::Adoption ExpertParallel::adopt(StateDict state) {
  const std::vector<State> parts = impl_->states();
  std::istringstream names(
      state.has_scalar(kOfParameters) ? state.text(kOfParameters) : "");
  for (std::string name; names >> name;) {
    const Buffer values = state.take(name);
    if (values.size() >= impl_->num_dense)
      state.put(name, values.view().subview(0, impl_->num_dense));
  }
  if (state.has_array(ranges_key(kNewParameters))) {
    std::vector<std::int64_t> of_dense;
    for (const Range& range :
         saved_ranges(state, kNewParameters, impl_->layout.size()))
      if (range.end() <= impl_->dense_size)
        for (const std::size_t value : {range.offset, range.size})
          of_dense.push_back(static_cast<std::int64_t>(value));
    state.put(ranges_key(kNewParameters), of_dense);
  }
  std::vector<StateDict> cut_state =
      cut(std::move(state), parts, impl_->prefix);
  std::vector<optim::Adoption> adoptions;
  for (std::size_t s = 0; s < impl_->sections.size(); ++s)
    adoptions.push_back(impl_->sections[s]->rule->adopt(cut_state[s + 1]));
  return [adoptions = std::move(adoptions),
          of_dense = impl_->dense->adopt(std::move(cut_state.front()))] {
    for (const optim::Adoption& adopt : adoptions) adopt();
    return of_dense();
  };
}

void ExpertParallel::require_owner(const StateDict& state) const {
  impl_->dense->require_owner(state);
  require_text(state, kExperts, impl_->describe_experts());
}

}  // namespace thinwire::optim
