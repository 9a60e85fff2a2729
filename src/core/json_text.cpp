// SPDX-License-Identifier: Apache-2.0
#include "core/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/require.h"

namespace thinwire {

namespace {

using Members = JsonValue::object_t;

// Up to this many keys are compared one by one. More keys are hashed.
constexpr std::size_t kFewKeys = 16;

const Members& members_of(const JsonValue& object) {
  return object.get_ref<const Members&>();
}

// Receives every piece of the text from nlohmann-json's parser.
class TreeBuilder final : public nlohmann::json_sax<JsonValue> {
 public:
  // If `take` is set, members of the outermost object are passed to it and not
  // kept.
  TreeBuilder(std::string_view text, const JsonLimits& limits,
              const TakeJsonMember* take)
      : text_(text), limits_(limits), take_(take) {}

  JsonValue take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(std::int64_t value) override { return put(value); }
  bool number_unsigned(std::uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override {
    return put(value);
  }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(JsonValue::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonValue::object()); }
  bool start_array(std::size_t) override { return open(JsonValue::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    if (!is_new(object, name))
      reject(fmt::format("duplicate key {}", brief_json(name)));
    if (++object.keys > limits_.members)
      reject(
          fmt::format("an object must have at most {} keys", limits_.members));
    (hands_over() ? member_name_ : key_) = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    const auto at = std::min(position > 0 ? position - 1 : 0, text_.size());
    if (at < text_.size() && (text_[at] == '/' || text_[at] == '#'))
      reject(fmt::format(
          "not JSON: a comment in line {}: JSON has none",
          1 + std::count(text_.begin(), text_.begin() + std::ptrdiff_t(at),
                         '\n')));
    std::string what = error.what();  // "[json.exception...] parse error ..."
    const std::size_t end_of_name = what.find("] ");
    if (end_of_name != std::string::npos) what.erase(0, end_of_name + 2);
    if (what.size() > 300) what = what.substr(0, 200) + " ...";
    reject("not JSON: " + what);
  }

 private:
  // An object or array whose end has not been seen.
  struct Open {
    JsonValue* value;
    std::size_t keys = 0;
    std::unordered_set<std::string> hashed{};
  };

  bool is_new(Open& object, const std::string& name) const {
    const Members& members = members_of(*object.value);
    if (!hands_over() && members.size() < kFewKeys)
      return find_member(*object.value, name) == nullptr;
    if (object.hashed.empty())
      for (const auto& member : members) object.hashed.insert(member.first);
    return object.hashed.insert(name).second;
  }
  // Whether the next value is a member that is not kept.
  bool hands_over() const { return take_ != nullptr && open_.size() == 1; }

  bool put(JsonValue value) {
    if (take_ != nullptr && open_.empty()) reject("not a JSON object");
    if (hands_over())
      (*take_)(member_name_, value, false);
    else
      place(std::move(value));
    return true;
  }
  // Pointers to open containers stay valid, because a container is complete
  // before its next neighbour is appended.
  JsonValue* place(JsonValue value) {
    if (++values_ > limits_.values)
      reject(
          fmt::format("the text must have at most {} values", limits_.values));
    if (open_.empty()) return &(root_ = std::move(value));
    if (hands_over()) return &(member_ = std::move(value));
    JsonValue& parent = *open_.back().value;
    if (parent.is_object())
      return &parent.get_ref<Members&>()
                  .emplace_back(key_, std::move(value))
                  .second;
    if (take_ != nullptr && open_.size() == 2 && value.is_structured()) {
      values_of_member_ = values_ - 1;
      return &(element_ = std::move(value));
    }
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool open(JsonValue container) {
    if (open_.size() == limits_.depth)
      reject(
          fmt::format("values must be nested at most {} deep", limits_.depth));
    if (take_ != nullptr && open_.empty() && container.is_array())
      reject("not a JSON object");
    open_.push_back({place(std::move(container))});
    return true;
  }
  bool close() {
    const JsonValue* const closed = open_.back().value;
    open_.pop_back();
    if (hands_over()) {
      values_ = 0;
      (*take_)(member_name_, member_, false);
    } else if (closed == &element_) {
      values_ = values_of_member_;
      (*take_)(member_name_, element_, true);
    }
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  const TakeJsonMember* take_;
  JsonValue root_;
  JsonValue member_;
  JsonValue element_;
  std::vector<Open> open_;
  std::string key_;
  std::string member_name_;
  std::size_t values_ = 0;
  std::size_t values_of_member_ = 0;
};

void read(std::string_view text, TreeBuilder& builder) {
  // The parser would mistake a NUL for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    reject(fmt::format("not JSON: byte {} of {} is NUL", nul + 1, text.size()));
  if (!JsonValue::sax_parse(text, &builder)) reject("not JSON");
}

// Returns the shortest text that is read as the same bits, and as a double.
std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos)
    text += ".0";
  return text;
}

std::string plain_text(const JsonValue& value) {
  if (value.is_number_float()) return real_text(value.get<double>());
  return value.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
}

void write(const JsonValue& value, std::size_t level, bool pretty,
           std::string& to) {
  const auto line = [&](std::size_t depth) {
    if (pretty) to += '\n' + std::string(2 * depth, ' ');
  };
  // [a, b] or {"k": a, "l": b}.
  const auto list = [&](char begin, char end, const auto& items,
                        const auto& write_item) {
    to += begin;
    bool first = true;
    for (const auto& item : items) {
      if (!first) to += pretty ? "," : ", ";
      first = false;
      line(level + 1);
      write_item(item);
    }
    if (!first) line(level);
    to += end;
  };
  if (value.is_array())
    list('[', ']', value,
         [&](const JsonValue& item) { write(item, level + 1, pretty, to); });
  else if (value.is_object())
    list('{', '}', members_of(value), [&](const auto& member) {
      to += plain_text(member.first) + ": ";
      write(member.second, level + 1, pretty, to);
    });
  else
    to += plain_text(value);
}

}  // namespace

JsonValue read_json(std::string_view text, const JsonLimits& limits) {
  TreeBuilder builder(text, limits, nullptr);
  read(text, builder);
  return builder.take();
}

void read_json_members(std::string_view text, const JsonLimits& limits,
                       const TakeJsonMember& take) {
  TreeBuilder builder(text, limits, &take);
  read(text, builder);
}

const JsonValue* find_member(const JsonValue& value,
                             std::string_view name) noexcept {
  if (const auto* const members = value.get_ptr<const Members*>())
    for (const auto& [key, member] : *members)
      if (key == name) return &member;
  return nullptr;
}

JsonValue* find_member(JsonValue& value, std::string_view name) noexcept {
  return const_cast<JsonValue*>(find_member(std::as_const(value), name));
}

std::optional<std::int64_t> integer_in(const JsonValue& value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMost)
    return std::nullopt;
  return value.get<std::int64_t>();
}

JsonValue short_number(double value) {
  constexpr double kMost = 1e16;  // Texts of larger ones have an exponent.
  if (value == std::floor(value) && std::abs(value) < kMost)
    return static_cast<std::int64_t>(value);
  return value;
}

std::string write_json(const JsonValue& value) {
  std::string text;
  write(value, 0, true, text);
  return text;
}

std::string compact_json(const JsonValue& value) {
  std::string text;
  write(value, 0, false, text);
  return text;
}

std::string brief_json(const JsonValue& value) {
  std::string text = compact_json(value);
  constexpr std::size_t kLength = 60;
  if (text.size() > kLength) text = text.substr(0, kLength) + "...";
  return text;
}

}  // namespace thinwire
