// What the pretend libraries beside the driver share: its side of them, and numbers as they read and write them, by
// `cudaDataType`.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;
using i64 = long long;

extern "C" {
int pretend_enter(const char* name, int needs_context);
int pretend_operation(void* stream, const char* name, void (*run)(void*), const void* context, std::uint64_t bytes);
void pretend_access(std::uint64_t ptr, std::uint64_t bytes, int write);
int pretend_capturing(void* stream);
int pretend_current_device();
}

enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

inline u64 size_of(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

inline double from_half(u16 bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                       : std::ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

// To the nearest, ties to even, which is what nearbyint does.
inline u16 to_half(double x) {
    const u16 sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return 0x7E00;
    const double size = std::fabs(x);
    if (size == 0) return sign;
    if (size >= 65520) return sign | 0x7C00;
    int exponent = 0;
    std::frexp(size, &exponent);
    const int shift = std::max(exponent - 11, -24);
    const double steps = std::nearbyint(std::ldexp(size, -shift));
    if (shift == -24) return static_cast<u16>(sign | static_cast<u16>(steps));
    return static_cast<u16>(sign + ((shift + 24) << 10) + static_cast<u16>(steps));
}

inline double get(u64 address, int type) {
    if (type == F64) return *reinterpret_cast<double*>(address);
    if (type == F32) return *reinterpret_cast<float*>(address);
    const u16 bits = *reinterpret_cast<u16*>(address);
    if (type == F16) return from_half(bits);
    const u32 wide = static_cast<u32>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

inline void put(u64 address, int type, double value) {
    if (type == F64) {
        *reinterpret_cast<double*>(address) = value;
    } else if (type == F32) {
        *reinterpret_cast<float*>(address) = static_cast<float>(value);
    } else if (type == F16) {
        *reinterpret_cast<u16*>(address) = to_half(value);
    } else {
        const float narrow = static_cast<float>(value);
        u32 bits;
        std::memcpy(&bits, &narrow, 4);
        const bool nan = std::isnan(narrow);
        *reinterpret_cast<u16*>(address) = static_cast<u16>(nan ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}
