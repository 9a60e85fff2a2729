// SPDX-License-Identifier: Apache-2.0
#include "optim/naive/naive.h"

#include <algorithm>
#include <array>

namespace thinwire::test::naive {

namespace {

// The terms in pieces of 1024, each summed by 16 accumulators and a tree.
std::vector<double> sums_of_1024(const std::vector<double>& terms) {
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < terms.size(); begin += 1024) {
    std::array<double, 16> lanes{};
    const std::size_t end = std::min(terms.size(), begin + 1024);
    for (std::size_t i = begin; i < end; ++i)
      lanes[(i - begin) % 16] += terms[i];
    for (std::size_t half = 8; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    sums.push_back(lanes[0]);
  }
  return sums;
}

double sum_of_chunks(const std::vector<double>& chunks) {
  double total = 0;
  for (const double group : sums_of_1024(chunks)) total += group;
  return total;
}

}  // namespace

double sum(const std::vector<double>& terms) {
  return sum_of_chunks(sums_of_1024(terms));
}

double sum_of_squares(const Floats& values, Range range) {
  std::vector<double> squares;
  for (std::size_t i = range.offset; i < range.end(); ++i)
    squares.push_back(double{values[i]} * values[i]);
  return sum(squares);
}

double sum_of_squares(const Floats& values) {
  return sum_of_squares(values, {0, values.size()});
}

double sum_of_cells(const Floats& values, Range range) {
  std::vector<double> chunks(range.end() / 1024 + 1);
  for (std::size_t at = range.offset; at < range.end();) {
    const std::size_t end = std::min(range.end(), (at / 1024 + 1) * 1024);
    chunks[at / 1024] = sum_of_squares(values, {at, end - at});
    at = end;
  }
  return sum_of_chunks(chunks);
}

std::vector<Range> blocks(const ParameterLayout& layout) {
  std::vector<Range> all;
  for (const Parameter& p : layout.parameters())
    for (std::size_t at = 0; at < p.size; at += 1024)
      all.push_back({p.offset + at, std::min<std::size_t>(1024, p.size - at)});
  return all;
}

Numbers numbers(const optim::AdamOptions& o, std::int64_t m_steps,
                std::int64_t v_steps) {
  const auto correction = [&](double beta, std::int64_t steps) {
    return o.bias_correction
               ? 1 / (1 - std::pow(beta, static_cast<double>(steps)))
               : 1.0;
  };
  return {.beta1 = static_cast<float>(o.beta1),
          .one_minus_beta1 = static_cast<float>(1 - o.beta1),
          .beta2 = static_cast<float>(o.beta2),
          .one_minus_beta2 = static_cast<float>(1 - o.beta2),
          .epsilon = static_cast<float>(o.epsilon),
          .inside = o.epsilon_inside_sqrt,
          .m_scale = static_cast<float>(correction(o.beta1, m_steps)),
          .v_scale = static_cast<float>(correction(o.beta2, v_steps)),
          .decay = static_cast<float>(o.weight_decay),
          .learning_rate = o.learning_rate};
}

float Numbers::momentum(float m, float g) const {
  return m * beta1 + one_minus_beta1 * g;
}

float Numbers::variance(float v, float g) const {
  return v * beta2 + (one_minus_beta2 * g) * g;
}

float Numbers::denominator(float v) const {
  return inside ? std::sqrt(v * v_scale + epsilon)
                : std::sqrt(v * v_scale) + epsilon;
}

float Numbers::update(float m, float d, float p) const {
  const float u = (m * m_scale) / d;
  return decay != 0 ? u + decay * p : u;
}

void Residuals::clear() {
  const Floats zeros(setup_.layout.size());
  worker_error.assign(static_cast<std::size_t>(setup_.world), zeros);
  server_error = zeros;
}

float Residuals::stored(float residual) const {
  return setup_.bf16_residuals ? to_float(to_bfloat16(residual)) : residual;
}

float OneBit::split(float* c, Range block, const Flags& active,
                    Floats& signed_scale) {
  std::vector<double> terms(block.size);
  std::size_t count = 0;
  for (std::size_t i = 0; i < block.size; ++i) {
    if (active[block.offset + i] == 0) c[i] = 0;
    count += active[block.offset + i] != 0 ? 1 : 0;
    terms[i] = double{c[i]} * c[i];
  }
  const double total = sum(terms);
  const auto n = static_cast<double>(count);
  float s = 0;
  if (count != 0)
    s = static_cast<float>(std::sqrt(total)) / static_cast<float>(std::sqrt(n));
  for (std::size_t i = 0; i < block.size; ++i) {
    const float q = c[i] < 0 ? -s : s;
    signed_scale[block.offset + i] = active[block.offset + i] != 0 ? q : 0;
    c[i] = active[block.offset + i] != 0 ? stored(c[i] - q) : 0;
  }
  return s;
}

Floats OneBit::mean(const std::vector<Floats>& x, const Flags& active) {
  const std::size_t n = setup_.layout.size();
  Floats result(n);
  if (setup_.world == 1) {
    for (std::size_t i = 0; i < n; ++i) result[i] = active[i] ? x[0][i] : 0;
    return result;
  }
  const auto inverse = static_cast<float>(1.0 / setup_.world);
  std::vector<Floats> sent(x.size(), Floats(n));
  for (const Range& block : blocks(setup_.layout)) {
    for (std::size_t r = 0; r < x.size(); ++r) {
      float* const c = worker_error[r].data() + block.offset;
      for (std::size_t i = 0; i < block.size; ++i)
        c[i] = x[r][block.offset + i] + c[i];
      split(c, block, active, sent[r]);
    }
    float* const c = server_error.data() + block.offset;
    for (std::size_t i = 0; i < block.size; ++i) {
      float average = 0;
      for (const Floats& values : sent)
        average += values[block.offset + i] * inverse;
      c[i] = average + c[i];
    }
    split(c, block, active, result);
  }
  return result;
}

Floats OneBit::share(const Floats& x, const Flags& active) {
  Floats result(x.size());
  for (const Range& block : blocks(setup_.layout)) {
    float* const c = server_error.data() + block.offset;
    for (std::size_t i = 0; i < block.size; ++i)
      c[i] = x[block.offset + i] + c[i];
    split(c, block, active, result);
  }
  return result;
}

void OneBit::give_back(const Floats& mean, Range range, const Flags& active) {
  if (setup_.world == 1) return;
  for (Floats& e : worker_error)
    for (std::size_t i = range.offset; i < range.end(); ++i)
      if (active[i] != 0) e[i] = stored(e[i] + mean[i]);
}

void OneBit::inherit(const FewBits& from, double clip, const Floats& unit,
                     const Floats& ratio, const Flags& active) {
  Floats weight;
  for (const Parameter& p : setup_.layout.parameters())
    weight.resize(
        p.offset + p.size,
        static_cast<float>((1 - setup_.groups[p.group].beta1) * clip));
  const auto inherit_into = [&](Floats& errors, const Floats& lost) {
    for (std::size_t i = 0; i < lost.size(); ++i)
      if (active[i] != 0)
        errors[i] =
            stored(errors[i] + ((weight[i] * lost[i]) * unit[i]) * ratio[i]);
  };
  for (std::size_t r = 0; r < worker_error.size(); ++r)
    inherit_into(worker_error[r], from.worker_error[r]);
  inherit_into(server_error, from.server_error);
}

NaiveCodes FewBits::quantize(float* c, std::size_t size) const {
  NaiveCodes sent(c, size, bits_);
  for (std::size_t i = 0; i < size; ++i)
    c[i] = stored(c[i] - sent.q[i] * sent.step);
  return sent;
}

Floats FewBits::mean(const std::vector<Floats>& grads) {
  const auto inverse = static_cast<float>(1.0 / setup_.world);
  Floats result(setup_.layout.size());
  for (const Range& block : blocks(setup_.layout)) {
    Floats average(block.size);
    for (std::size_t r = 0; r < grads.size(); ++r) {
      float* const c = worker_error[r].data() + block.offset;
      for (std::size_t i = 0; i < block.size; ++i)
        c[i] = grads[r][block.offset + i] + c[i];
      const NaiveCodes sent = quantize(c, block.size);
      for (std::size_t i = 0; i < block.size; ++i)
        average[i] += sent.q[i] * (sent.step * inverse);
    }
    float* const c = server_error.data() + block.offset;
    for (std::size_t i = 0; i < block.size; ++i) c[i] = average[i] + c[i];
    const NaiveCodes sent = quantize(c, block.size);
    for (std::size_t i = 0; i < block.size; ++i)
      result[block.offset + i] = sent.q[i] * sent.step;
  }
  return result;
}

std::optional<Gradients::Average> Gradients::rounded(
    const std::vector<Floats>& grads, FewBits& bits) {
  const std::optional<double> rms = rms_norm(grads);
  if (!rms) {
    bits.clear();
    return std::nullopt;
  }
  Average average{.sum = bits.mean(grads)};
  const double norm = std::sqrt(sum_of_squares(average.sum));
  remember(norm, *rms);
  average.clip = clip(norm);
  average.scale = static_cast<float>(average.clip);
  return average;
}

double Gradients::clip(double norm) const {
  const double most = setup_.max_grad_norm;
  return most > 0 && norm > most ? most / norm : 1.0;
}

std::optional<double> Gradients::rms_norm(
    const std::vector<Floats>& grads) const {
  double total = 0;
  if (averaged_.empty())
    for (const Floats& g : grads) total += sum_of_squares(g);
  for (const Averaged& of_rank : averaged_) {
    double own = 0;
    for (const Range& range : of_rank.ranges)
      own += sum_of_squares(grads[of_rank.host], range);
    total += own;
  }
  if (!std::isfinite(total)) return std::nullopt;
  return std::sqrt(total / setup_.world);
}

void Gradients::remember(double norm, double rms) {
  if (rms > 0) {
    ratio_ = measured_ ? 0.9 * ratio_ + 0.1 * (norm / rms) : norm / rms;
    measured_ = true;
  }
  before_ = rms;
}

void Gradients::exact_by_host(const std::vector<Floats>& grads,
                              const std::vector<int>& ranks) {
  const auto world = static_cast<double>(grads.size());
  const std::size_t per_host =
      grads.size() / static_cast<std::size_t>(setup_.world);
  double squares = 0;
  for (const Floats& g : grads) squares += sum_of_squares(g);
  Floats sum(grads[0].size());
  for (std::size_t i = 0; i < sum.size(); ++i)
    for (std::size_t h = 0; h < grads.size(); h += per_host) {
      float of_host = 0;
      for (std::size_t l = h; l < h + per_host; ++l)
        of_host += grads[static_cast<std::size_t>(ranks[l])][i];
      sum[i] += of_host;
    }
  const double norm = std::sqrt(sum_of_squares(sum)) / world;
  const double rms = std::sqrt(squares / world);
  const double noise = std::max(0.0, rms * rms - norm * norm);
  const double part = (setup_.world - 1.0) / (world - 1.0);
  remember(norm, std::sqrt(norm * norm + noise * part));
}

std::optional<Gradients::Average> Gradients::exact(
    const std::vector<Floats>& grads) {
  const std::optional<double> rms = rms_norm(grads);
  if (!rms) return std::nullopt;
  Average average{.sum = grads[0]};
  for (std::size_t r = 1; r < grads.size(); ++r)
    for (std::size_t i = 0; i < average.sum.size(); ++i)
      average.sum[i] += grads[r][i];
  const double norm = std::sqrt(sum_of_squares(average.sum)) / setup_.world;
  remember(norm, *rms);
  average.scale = static_cast<float>(clip(norm) / setup_.world);
  return average;
}

std::optional<double> Gradients::compressed(const std::vector<Floats>& grads) {
  const std::optional<double> rms = rms_norm(grads);
  if (!rms) return std::nullopt;
  if (!setup_.lagged_clipping) return clip(calibrated(*rms));
  double by = before_;
  if (*rms > 2 * before_) by = *rms;
  before_ = before_ > 0 ? std::min(*rms, 2 * before_) : *rms;
  return clip(calibrated(by));
}

std::optional<double> Gradients::local(const Floats& grads) const {
  const double own = sum_of_squares(grads);
  if (!std::isfinite(own)) return std::nullopt;
  return clip(calibrated(std::sqrt(own)));
}

}  // namespace thinwire::test::naive
