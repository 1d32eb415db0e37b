include $(sort $(wildcard $(BR2_EXTERNAL_MARGOLITE_PATH)/package/*/*.mk))
