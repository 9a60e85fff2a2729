// SPDX-License-Identifier: Apache-2.0
#include "config/keywords.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/fields.h"
#include "config/keys.h"
#include "config/sections.h"
#include "core/edit_distance.h"
#include "core/require.h"
#include "thinwire/core/checksum.h"

namespace thinwire::config {

namespace {

// Archive that lists the names of fields.
class Names {
 public:
  explicit Names(std::vector<std::string_view>& names) : names_(&names) {}

  template <class... Rest>
  void field(std::string_view name, const Rest&...) const {
    names_->push_back(name);
  }
  template <class... Rest>
  void choice(std::string_view name, const Rest&...) const {
    names_->push_back(name);
  }
  template <class... Rest>
  void pair(std::string_view name, const Rest&...) const {
    names_->push_back(name);
  }

 private:
  std::vector<std::string_view>* names_;
};

template <class Options>
inline constexpr bool kMayLoop = !requires(Options o) {
  o.compression;
}
|| std::is_same_v<Options, optim::OnebitAdamOptions>;

// Keywords that are null keep the default.
JsonValue without_nulls(const JsonValue& given) {
  JsonValue kept = JsonValue::object();
  for (const auto& [name, value] : given.items())
    if (!value.is_null()) kept[name] = value;
  return kept;
}

[[noreturn]] void reject_type(const std::string& message) {
  throw WrongType(ErrorCode::kInvalidArgument, message);
}

// Returns the suggestion in a message about an unknown name.
std::string suggestion(std::string_view name,
                       const std::vector<std::string_view>& known) {
  const std::string_view near = nearest_name(name, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

[[noreturn]] void reject_keyword(std::string_view type, std::string_view name,
                                 const std::vector<std::string_view>& known) {
  const std::string path = fmt::format("thinwire.{}", name);
  const auto rules = key_rules();
  const auto rule = std::ranges::find(rules, path, &KeyRule::path);
  if (rule != rules.end() && rule->status == KeyStatus::kRejected)
    reject_type(fmt::format("{}() has no keyword '{}' any more: {}", type, name,
                            rule->text));
  if (rule != rules.end() && rule->only.empty())
    reject_type(
        fmt::format("{}() has no keyword '{}': set {} in a configuration of "
                    "thinwire.initialize",
                    type, name, path));
  reject_type(fmt::format("{}() got an unexpected keyword argument '{}'{}",
                          type, name, suggestion(name, known)));
}

void read_outer(const JsonValue& given, outer::OuterOptions& options) {
  if (!given.is_object())
    reject_type(
        fmt::format("outer must be a dict or None, got {}", brief_json(given)));
  std::vector<std::string_view> known;
  outer_fields(Names(known), options);
  for (const auto& [name, value] : given.items())
    if (std::ranges::find(known, name) == known.end())
      reject_type(fmt::format("outer: got an unexpected key '{}'{}", name,
                              suggestion(name, known)));
  outer_fields(Reader(&given, "outer", Paths::kPython), options);
  if (!given.contains("sync_every"))
    reject("outer must have the key 'sync_every', >= 1");
  require(options.sync_every >= 1, "outer['sync_every']", ">= 1",
          options.sync_every);
}

OptimizerConfig optimizer_of(std::string_view type) {
  if (type == "LeanOnebitAdam") return default_optimizer(kLeanIndex);
  for (const auto& [name, index] : kOptimizerTypes)
    if (lower(name) == lower(type)) return default_optimizer(index);
  reject(fmt::format("unknown type of optimizer '{}'", type));
}

template <class Options>
void read_keywords(Config& config, Options& options, std::string_view type,
                   const JsonValue& given,
                   const std::vector<std::string>& others) {
  std::vector<std::string_view> known;
  keyword_fields(Names(known), config, options);
  const bool is_plain_adam = type == "Adam";
  if (is_plain_adam) known.push_back("adam_w_mode");
  if (kMayLoop<Options>) known.push_back("outer");
  known.insert(known.end(), others.begin(), others.end());
  for (const auto& [name, value] : given.items())
    if (std::ranges::find(known, name) == known.end())
      reject_keyword(type, name, known);
  const JsonValue values = without_nulls(given);
  const Reader reader(&values, "", Paths::kPython);
  keyword_fields(reader, config, options);
  if constexpr (requires { options.decoupled_decay; })
    if (is_plain_adam) reader.field("adam_w_mode", options.decoupled_decay);
  if (const JsonValue* outer = find_member(values, "outer"))
    if (kMayLoop<Options>) read_outer(*outer, config.outer);
}

template <class Group>
void read_group(const GroupKeywords& given, std::size_t index, Group& group) {
  const JsonValue values = without_nulls(given.options);
  const Reader reader(&values, fmt::format("param_groups[{}]", index),
                      Paths::kPython);
  std::vector<std::string_view> known;
  group_fields(Names(known), group);
  for (const auto& [name, value] : given.options.items())
    if (std::ranges::find(known, name) == known.end())
      reject(fmt::format("{}: this optimizer has no such option",
                         reader.path_of(name)));
  group_fields(reader, group);
  if constexpr (requires { group.exp_avg_mask; })
    group.exp_avg_mask = given.exp_avg_mask;
  else if (!given.exp_avg_mask.empty())
    reject(fmt::format("{}: this optimizer has no masks, it compresses nothing",
                       reader.path_of("exp_avg_mask")));
}

}  // namespace

void set_optimizer(Config& config, std::string_view type,
                   const JsonValue& given,
                   const std::vector<std::string>& others) {
  Config made = config;
  made.optimizer = optimizer_of(type);
  std::visit(
      [&](auto& options) { read_keywords(made, options, type, given, others); },
      made.optimizer);
  config = std::move(made);
}

void set_groups(Config& config, const std::vector<GroupKeywords>& groups) {
  std::visit(
      [&](auto& options) {
        auto made = options.groups;
        made.clear();
        made.resize(groups.size());
        for (std::size_t k = 0; k < groups.size(); ++k)
          read_group(groups[k], k, made[k]);
        options.groups = std::move(made);
      },
      config.optimizer);
}

std::string describe_groups(const OptimizerConfig& optimizer) {
  std::string text;
  const auto describe = [&text](const auto& group) {
    JsonValue fields = JsonValue::object();
    group_fields(Writer(fields), group);
    text += compact_json(fields);
    if constexpr (requires { group.exp_avg_mask; })
      text += fmt::format(" {} of a mask, checksum {:016x}",
                          group.exp_avg_mask.size(),
                          checksum(ConstView(group.exp_avg_mask)));
    text += '\n';
  };
  std::visit([&](const auto& o) { std::ranges::for_each(o.groups, describe); },
             optimizer);
  return text;
}

}  // namespace thinwire::config
