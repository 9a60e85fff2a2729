// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/whole_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "checkpoint/format/fields.h"
#include "core/json_text.h"
#include "core/require.h"
#include "thinwire/comm/agreement.h"

namespace thinwire::checkpoint {

namespace {

// Returns this rank's experts, and the ranks that hold each of them.
// Collective.
std::string text_of_experts(const comm::Communicator& comm,
                            const ParameterLayout& layout,
                            const std::vector<optim::HeldParameters>& held) {
  JsonValue all = JsonValue::array();
  const std::int64_t rank = comm.rank();
  for (std::size_t h = 1; h < held.size(); ++h) {
    std::vector<std::int64_t> ranks(
        static_cast<std::size_t>(held[h].comm->size()));
    held[h].comm->all_gather(std::span(&rank, 1), ranks);
    for (const std::size_t p : held[h].parameters) {
      const Parameter& parameter = layout.parameters()[p];
      all.push_back({{"name", parameter.name},
                     {"shape", parameter.shape},
                     {"group", parameter.group},
                     {"ranks", ranks}});
    }
  }
  return compact_json(all);
}

// An expert, with the properties that must be equal on all its ranks.
struct Expert {
  ParameterSpec spec;
  std::vector<std::int64_t> ranks;
};

Expert expert_in(const JsonValue& one) {
  Expert expert;
  one.at("name").get_to(expert.spec.name);
  one.at("shape").get_to(expert.spec.shape);
  one.at("group").get_to(expert.spec.group);
  one.at("ranks").get_to(expert.ranks);
  return expert;
}

}  // namespace

WholeModel whole_model(comm::Communicator& comm, const Training& training) {
  const ParameterLayout& layout = training.layout;
  WholeModel whole;
  whole.held = optim::held_parameters(comm, layout, training.experts);
  std::vector<ParameterSpec> specs;
  for (const std::size_t p : whole.held.front().parameters) {
    const Parameter& parameter = layout.parameters()[p];
    specs.push_back({parameter.name, parameter.shape, parameter.group});
  }
  whole.num_dense = specs.size();
  whole.writers.assign(specs.size(), 0);
  if (!training.experts.empty()) {
    std::map<std::string, std::vector<std::int64_t>> known;
    for (const std::string& text :
         comm::gather_texts(comm, text_of_experts(comm, layout, whole.held)))
      for (const JsonValue& one : read_json(text)) {
        Expert expert = expert_in(one);
        const auto [at, is_new] = known.emplace(expert.spec.name, expert.ranks);
        if (at->second != expert.ranks)
          reject(fmt::format(
              "parameter '{}' is an expert of ranks {} and another one of "
              "ranks {}: name experts by their number among all",
              expert.spec.name, fmt::join(at->second, ", "),
              fmt::join(expert.ranks, ", ")));
        if (!is_new) continue;
        whole.writers.push_back(static_cast<int>(expert.ranks.front()));
        specs.push_back(std::move(expert.spec));
      }
  }
  whole.layout = ParameterLayout::of(std::move(specs), layout.num_groups());
  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t p = 0; p < layout.parameters().size(); ++p)
    numbers.emplace(layout.parameters()[p].name, p);
  whole.places.resize(layout.parameters().size());
  for (std::size_t i = 0; i < whole.layout.parameters().size(); ++i) {
    const auto at = numbers.find(whole.layout.parameters()[i].name);
    if (at == numbers.end()) {
      whole.own.emplace_back();
      continue;
    }
    whole.own.emplace_back(at->second);
    whole.places[at->second] = i;
  }
  return whole;
}

}  // namespace thinwire::checkpoint
