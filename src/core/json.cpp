// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/require.h"

namespace thinwire {

namespace {

// Up to this many keys are compared one by one; then they are hashed.
constexpr std::size_t kFewMembers = 16;

// Receives every piece of the text from nlohmann-json's parser.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // With `take`, members of the outermost object are passed on and not kept.
  Builder(std::string_view text, const JsonLimits& limits,
          const TakeMember* take)
      : text_(text), limits_(limits), take_(take) {}

  Json take() { return std::move(root_); }

  bool null() override { return put({}); }
  bool boolean(bool value) override { return put(Json::of(value)); }
  bool number_integer(std::int64_t value) override {
    return put_number(static_cast<double>(value), std::to_string(value));
  }
  bool number_unsigned(std::uint64_t value) override {
    return put_number(static_cast<double>(value), std::to_string(value));
  }
  bool number_float(double value, const std::string& written) override {
    return put_number(value, written);
  }
  bool string(std::string& value) override {
    return put(Json::of(std::string_view(value)));
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override {
    return open({.kind = Json::Kind::kArray});
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    if (!is_new(object, name))
      reject(fmt::format("duplicate key {}",
                         brief_json(Json::of(std::string_view(name)))));
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
  bool put_number(double value, std::string written) {
    return put({.kind = Json::Kind::kNumber,
                .number = value,
                .text = std::move(written)});
  }
  // An object or array whose end has not been seen.
  struct Open {
    Json* value;
    std::size_t keys = 0;
    std::unordered_set<std::string> hashed{};
  };

  bool is_new(Open& object, const std::string& name) const {
    const auto& members = object.value->members;
    if (!hands_over() && members.size() < kFewMembers)
      return object.value->find(name) == nullptr;
    if (object.hashed.empty())
      for (const Json::Member& member : members)
        object.hashed.insert(member.first);
    return object.hashed.insert(name).second;
  }
  // The next value is one that nothing keeps.
  bool hands_over() const { return take_ != nullptr && open_.size() == 1; }

  bool put(Json value) {
    if (take_ != nullptr && open_.empty()) reject("not a JSON object");
    if (hands_over())
      (*take_)(member_name_, std::move(value), false);
    else
      place(std::move(value));
    return true;
  }
  // Pointers to open containers stay valid: what is inside of one is complete
  // before its next neighbour is appended.
  Json* place(Json value) {
    if (++values_ > limits_.values)
      reject(
          fmt::format("the text must have at most {} values", limits_.values));
    if (open_.empty()) return &(root_ = std::move(value));
    if (hands_over()) return &(member_ = std::move(value));
    Json& parent = *open_.back().value;
    if (parent.is(Json::Kind::kObject))
      return &parent.add(key_, std::move(value));
    if (take_ != nullptr && open_.size() == 2 && is_container(value)) {
      values_of_member_ = values_ - 1;
      return &(element_ = std::move(value));
    }
    return &parent.elements.emplace_back(std::move(value));
  }
  static bool is_container(const Json& value) {
    return value.is(Json::Kind::kObject) || value.is(Json::Kind::kArray);
  }
  bool open(Json container) {
    if (open_.size() == limits_.depth)
      reject(
          fmt::format("values must be nested at most {} deep", limits_.depth));
    if (take_ != nullptr && open_.empty() && container.is(Json::Kind::kArray))
      reject("not a JSON object");
    open_.push_back({place(std::move(container))});
    return true;
  }
  bool close() {
    const Json* const closed = open_.back().value;
    open_.pop_back();
    if (hands_over()) {
      values_ = 0;
      (*take_)(member_name_, std::move(member_), false);
    } else if (closed == &element_) {
      values_ = values_of_member_;
      (*take_)(member_name_, std::move(element_), true);
    }
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  const TakeMember* take_;
  Json root_;
  Json member_;
  Json element_;
  std::vector<Open> open_;
  std::string key_;
  std::string member_name_;
  std::size_t values_ = 0;
  std::size_t values_of_member_ = 0;
};

void parse(std::string_view text, Builder& builder) {
  // The parser would take it for the end of the text.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos)
    reject(fmt::format("not JSON: byte {} of {} is NUL", nul + 1, text.size()));
  if (!nlohmann::json::sax_parse(text, &builder)) reject("not JSON");
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace);
}

void write(const Json& value, std::size_t level, bool pretty, std::string& to) {
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
  switch (value.kind) {
    case Json::Kind::kNull:
      to += "null";
      break;
    case Json::Kind::kBoolean:
      to += value.boolean ? "true" : "false";
      break;
    case Json::Kind::kNumber:
      to += value.text;
      break;
    case Json::Kind::kText:
      to += quoted(value.text);
      break;
    case Json::Kind::kArray:
      list('[', ']', value.elements,
           [&](const Json& item) { write(item, level + 1, pretty, to); });
      break;
    case Json::Kind::kObject:
      list('{', '}', value.members, [&](const Json::Member& item) {
        to += quoted(item.first) + ": ";
        write(item.second, level + 1, pretty, to);
      });
      break;
  }
}

}  // namespace

Json Json::of(bool value) { return {.kind = Kind::kBoolean, .boolean = value}; }

// "-0" would be read as an integer, without its sign.
Json Json::of(double value) {
  return {.kind = Kind::kNumber,
          .number = value,
          .text = value == 0 ? "0" : fmt::format("{}", value)};
}

Json Json::of(std::int64_t value) {
  return {.kind = Kind::kNumber,
          .number = static_cast<double>(value),
          .text = std::to_string(value)};
}

Json Json::of(std::string_view value) {
  return {.kind = Kind::kText, .text = std::string(value)};
}

Json Json::object() { return {.kind = Kind::kObject}; }

const Json* Json::find(std::string_view name) const noexcept {
  const auto found =
      std::find_if(members.begin(), members.end(),
                   [name](const Member& m) { return m.first == name; });
  return found == members.end() ? nullptr : &found->second;
}

Json& Json::add(std::string name, Json value) {
  return members.emplace_back(std::move(name), std::move(value)).second;
}

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder(text, limits, nullptr);
  parse(text, builder);
  return builder.take();
}

void parse_json_members(std::string_view text, const JsonLimits& limits,
                        const TakeMember& take) {
  Builder builder(text, limits, &take);
  parse(text, builder);
}

std::string write_json(const Json& value) {
  std::string text;
  write(value, 0, true, text);
  return text;
}

std::string compact_json(const Json& value) {
  std::string text;
  write(value, 0, false, text);
  return text;
}

std::string brief_json(const Json& value) {
  std::string text = compact_json(value);
  constexpr std::size_t kLength = 60;
  if (text.size() > kLength) text = text.substr(0, kLength) + "...";
  return text;
}

}  // namespace thinwire
