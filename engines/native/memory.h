// Memory that grows when more is asked for and stays: what a step works in.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace bulkhead {

// Numbers of which nothing is known until they are written. Aligned to 64 bytes.
template <class Number>
class Buffer {
 public:
  // What was in it is lost where it grows.
  void reserve(size_t size) {
    if (size <= size_) return;
    data_.reset();  // first, so that both are never there at once
    size_ = 0;
    data_.reset(static_cast<Number*>(::operator new(size * sizeof(Number), ALIGNMENT)));
    size_ = size;
  }

  Number* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t ALIGNMENT{64};
  struct Free {
    void operator()(Number* data) const { ::operator delete(data, ALIGNMENT); }
  };

  std::unique_ptr<Number, Free> data_;
  size_t size_ = 0;
};

}  // namespace bulkhead
