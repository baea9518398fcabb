// An array of Python's, by the buffer protocol: its memory for as long as this object lives.
//
// Cheaper than nanobind's ndarray, which a call with a step's arrays would spend most of its time on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace bulkhead {

template <class Number>
class Borrowed {
 public:
  // Throws for anything but a C-contiguous array of Numbers. `name` is for what is thrown.
  Borrowed(nanobind::handle array, const char* name) : name_(name) {
    if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw std::invalid_argument(name_ + std::string(" is no contiguous array"));
    }
    if (!is_of_numbers()) {
      const std::string format = buffer_.format ? buffer_.format : "bytes";
      PyBuffer_Release(&buffer_);
      throw std::invalid_argument(name_ + std::string(" holds numbers of type ") + format +
                                  " instead of " + wanted());
    }
  }
  ~Borrowed() { PyBuffer_Release(&buffer_); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  const Number* data() const { return static_cast<const Number*>(buffer_.buf); }
  int64_t size() const { return buffer_.len / static_cast<int64_t>(sizeof(Number)); }
  int dimensions() const { return buffer_.ndim; }
  int64_t length(int dimension) const { return buffer_.shape[dimension]; }

  void must_have(std::initializer_list<int64_t> shape) const {
    bool fits = buffer_.ndim == static_cast<int>(shape.size());
    int dimension = 0;
    for (int64_t wanted : shape) fits = fits && buffer_.shape[dimension++] == wanted;
    if (!fits)
      throw std::invalid_argument(name_ + std::string(" has shape ") +
                                  told(buffer_.shape, buffer_.shape + buffer_.ndim) +
                                  " instead of " + told(shape.begin(), shape.end()));
  }

 private:
  bool is_of_numbers() const {
    const std::string_view format = buffer_.format ? buffer_.format : "";
    if (format.size() != 1 || buffer_.itemsize != sizeof(Number)) return false;
    constexpr std::string_view letters = std::is_signed_v<Number> ? "bhilq" : "BHILQ";
    return letters.find(format[0]) != std::string_view::npos;
  }

  static std::string wanted() {
    return (std::is_signed_v<Number> ? "int" : "uint") + std::to_string(8 * sizeof(Number));
  }

  template <class Length>
  static std::string told(const Length* length, const Length* end) {
    std::string text = "[";
    for (; length != end; ++length) text += (text.size() > 1 ? ", " : "") + std::to_string(*length);
    return text + "]";
  }

  const char* name_;
  Py_buffer buffer_;
};

}  // namespace bulkhead
