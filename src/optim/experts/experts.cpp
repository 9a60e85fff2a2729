// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "core/require.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

comm::Communicator* of_group(std::size_t group,
                             const std::vector<ExpertGroup>& experts) {
  const auto at =
      std::ranges::find(experts, group, [](const auto& e) { return e.group; });
  return at == experts.end() ? nullptr : at->comm;
}

std::vector<std::string> lines_of(const ParameterLayout& layout) {
  std::vector<std::string> lines;
  const std::string text = layout.describe();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end == std::string::npos ? end : end + 1;
  }
  return lines;
}

}  // namespace

std::vector<HeldParameters> held_parameters(
    comm::Communicator& comm, const ParameterLayout& layout,
    const std::vector<ExpertGroup>& experts) {
  std::vector<HeldParameters> held{{&comm, {}}};
  for (const ExpertGroup& one : experts)
    if (std::ranges::none_of(held, [&](const HeldParameters& h) {
          return h.comm == one.comm && &h != &held.front();
        }))
      held.push_back({one.comm, {}});
  for (std::size_t p = 0; p < layout.parameters().size(); ++p) {
    const auto* const own = of_group(layout.parameters()[p].group, experts);
    const auto at = own == nullptr ? held.begin()
                                   : std::find_if(held.begin() + 1, held.end(),
                                                  [&](const HeldParameters& h) {
                                                    return h.comm == own;
                                                  });
    at->parameters.push_back(p);
  }
  return held;
}

std::size_t dense_size(const ParameterLayout& layout,
                       const std::vector<ExpertGroup>& experts) {
  std::size_t size = 0;
  for (const Parameter& p : layout.parameters())
    if (of_group(p.group, experts) == nullptr) size += p.size;
  return size;
}

void require_experts(const ParameterLayout& layout,
                     const std::vector<ExpertGroup>& experts) {
  std::vector<bool> is_expert(layout.num_groups());
  for (const ExpertGroup& one : experts) {
    require(one.group < layout.num_groups() && !is_expert[one.group],
            "experts.group",
            fmt::format("below {} and given once", layout.num_groups()),
            one.group);
    require(one.comm != nullptr, "experts.comm", "a communicator", "null");
    is_expert[one.group] = true;
  }
  require(
      experts.empty() || std::ranges::find(is_expert, false) != is_expert.end(),
      "experts", "fewer than all groups", experts.size());
}

// Throws on all ranks, because ranks with other experts would wait for a rank
// that threw alone.
void for_experts(comm::Communicator& comm,
                 const std::vector<HeldParameters>& held,
                 const std::function<void(const HeldParameters&)>& body) {
  if (held.size() == 1) return;
  std::exception_ptr failure;
  for (std::size_t h = 1; h < held.size(); ++h) try {
      body(held[h]);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      failure = std::current_exception();
    }
  comm::require_everywhere(comm, [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

void require_same_parameters(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const std::vector<ExpertGroup>& experts,
                             std::string_view what, std::string_view rest) {
  if (experts.empty())
    return comm::require_same(comm, what,
                              layout.describe() + std::string(rest));
  const std::vector<std::string> lines = lines_of(layout);
  const auto held = held_parameters(comm, layout, experts);
  std::string dense;
  for (const std::size_t p : held.front().parameters)
    dense += fmt::format("{} at {}\n", lines[p], layout.parameters()[p].offset);
  for (const ExpertGroup& one : experts)
    dense += fmt::format("experts in group {}\n", one.group);
  comm::require_same(comm, what, dense + std::string(rest));
  for_experts(comm, held, [&](const HeldParameters& experts_of_one) {
    std::string own;
    for (const std::size_t p : experts_of_one.parameters)
      own += lines[p] + '\n';
    comm::require_same(*experts_of_one.comm, "the experts of one communicator",
                       own);
  });
}

}  // namespace thinwire::optim
